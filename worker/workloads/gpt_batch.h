// Which windows of the text a pass reads. A window is `context` bytes, each of which predicts the
// byte after it.
//
//   const TrainingWindows windows(text.train, seed, global_batch, context);
//   windows.Fill(step, first_sequence, batch);       // batch.tokens and batch.targets
//
// The text must outlive the windows. Thread-safety: immutable.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_BATCH_H_
#define TESSERA_WORKER_WORKLOADS_GPT_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// Sequence after sequence; a target of -1 does not count.
struct GptBatch {
  GptBatch(int64_t batch_sequences, int64_t batch_context)
      : sequences(batch_sequences),
        context(batch_context),
        tokens(static_cast<size_t>(sequences * context)),
        targets(tokens.size()) {}

  int64_t sequences;
  int64_t context;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
};

// Sequence g of step s starts at a byte that is drawn from (seed, s, g) alone, so the global batch
// is the same at every world size and number of micro-batches.
class TrainingWindows {
 public:
  // `text` has more than `context` bytes.
  TrainingWindows(absl::string_view text, uint64_t seed, int64_t global_batch, int64_t context)
      : text_(text), seed_(seed), global_batch_(global_batch), context_(context) {}

  // First byte of a sequence: `step` from 1, `sequence` from 0 to global_batch - 1.
  int64_t Start(int64_t step, int64_t sequence) const;
  // Sequences first_sequence, first_sequence + 1, ...
  void Fill(int64_t step, int64_t first_sequence, GptBatch& batch) const;

 private:
  absl::string_view text_;
  uint64_t seed_;
  int64_t global_batch_;
  int64_t context_;
};

// The fixed windows of held-out text that evaluations read: as many as do not overlap, at most
// kMost, spread evenly from the first byte to the last. Rank r of w reads windows r, r + w, ...;
// all ranks make the same number of passes, and where a rank has run out of windows its targets are
// -1.
class EvaluationWindows {
 public:
  static constexpr int64_t kMost = 192;

  // `text` has more than `context` bytes.
  EvaluationWindows(absl::string_view text, int64_t context);

  int64_t count() const { return count_; }
  int64_t Start(int64_t window) const;
  // Passes that each of `world_size` ranks makes with batches of `sequences`.
  int64_t Passes(int64_t world_size, int64_t sequences) const;
  void Fill(int64_t pass, int64_t rank, int64_t world_size, GptBatch& batch) const;

 private:
  absl::string_view text_;
  int64_t context_;
  int64_t count_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_GPT_BATCH_H_
