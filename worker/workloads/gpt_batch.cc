#include "worker/workloads/gpt_batch.h"

#include <algorithm>

#include "common/philox.h"

namespace tessera {
namespace {

void CopyWindow(absl::string_view text, int64_t start, int64_t sequence, GptBatch& batch) {
  const char* from = text.data() + start;
  const int64_t row = sequence * batch.context;
  for (int64_t i = 0; i < batch.context; ++i) {
    batch.tokens[row + i] = static_cast<unsigned char>(from[i]);
    batch.targets[row + i] = static_cast<unsigned char>(from[i + 1]);
  }
}

}  // namespace

int64_t TrainingWindows::Start(int64_t step, int64_t sequence) const {
  const RandomStream draws(seed_, StreamId("training windows"));
  const uint64_t starts = text_.size() - static_cast<uint64_t>(context_);
  return static_cast<int64_t>(
      draws.Below(static_cast<uint64_t>((step - 1) * global_batch_ + sequence), starts));
}

void TrainingWindows::Fill(int64_t step, int64_t first_sequence, GptBatch& batch) const {
  for (int64_t i = 0; i < batch.sequences; ++i) {
    CopyWindow(text_, Start(step, first_sequence + i), i, batch);
  }
}

EvaluationWindows::EvaluationWindows(absl::string_view text, int64_t context)
    : text_(text),
      context_(context),
      count_(std::min(kMost, static_cast<int64_t>(text.size()) / (context + 1))) {}

int64_t EvaluationWindows::Start(int64_t window) const {
  if (count_ < 2) return 0;
  const int64_t last_start = static_cast<int64_t>(text_.size()) - (context_ + 1);
  return last_start * window / (count_ - 1);
}

int64_t EvaluationWindows::Passes(int64_t world_size, int64_t sequences) const {
  const int64_t windows_a_pass = world_size * sequences;
  return (count_ + windows_a_pass - 1) / windows_a_pass;
}

void EvaluationWindows::Fill(int64_t pass, int64_t rank, int64_t world_size,
                             GptBatch& batch) const {
  for (int64_t i = 0; i < batch.sequences; ++i) {
    const int64_t window = (pass * batch.sequences + i) * world_size + rank;
    if (window < count_) {
      CopyWindow(text_, Start(window), i, batch);
      continue;
    }
    const int64_t row = i * batch.context;
    std::fill_n(batch.tokens.begin() + row, batch.context, 0);
    std::fill_n(batch.targets.begin() + row, batch.context, -1);
  }
}

}  // namespace tessera
