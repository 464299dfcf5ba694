#include "coordinator/gpt_activations.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

// Every part begins on a cache line of 16 float32.
__int128 Part(__int128 numel) { return (numel + 15) / 16 * 16; }

int64_t Clamped(__int128 bytes) {
  return bytes > kMaxActivationBytes ? kMaxActivationBytes : static_cast<int64_t>(bytes);
}

// In float32 elements.
struct GptNumels {
  __int128 input = 0;  // of a block, with recomputation all that it keeps
  __int128 block = 0;  // of one, without its input
  __int128 root = 0;
};

GptNumels NumelsOf(const v1::ModelSource& model, const v1::ActivationSpec& pass) {
  const bool attention = !model.has_attention() || model.attention();
  const __int128 rows = __int128{pass.batch()} * pass.sequence();
  const __int128 stream = Part(rows * model.width());
  const __int128 wide = Part(4 * rows * model.width());
  const __int128 statistics = 2 * Part(rows);
  // Query, key, value and the probabilities.
  const __int128 heads = 3 * stream + Part(rows * model.heads() * pass.sequence());
  GptNumels numels;
  // The residual stream before the block; and between its halves, the second norm, both sides of
  // the GELU.
  numels.input = stream;
  numels.block = 2 * stream + statistics + 2 * wide;
  // The residual stream after the last block, the last norm, the logits, and four scratch buffers,
  // of which one is wide.
  numels.root = 5 * stream + statistics + Part(rows * model.vocab()) + wide;
  if (attention) {
    numels.block += 2 * stream + statistics + heads;  // the first norm, attention's output
    numels.root += heads;                             // scratch
  }
  return numels;
}

// What float32 is kept of parameters and gradients in another dtype: a copy of each of the root's
// and of its gradient; for all blocks between them one matrix, the largest, and four vectors (of a
// bias or a norm's weight, of a norm's bias, and of the gradients of the last two).
int64_t StandInBytes(const v1::Plan& plan, bool attention) {
  int64_t root = 0, matrix = 0, vector = 0, norm = 0;
  for (const v1::Unit& unit : plan.units()) {
    if (unit.param_dtype() == v1::FLOAT32) continue;
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      const std::string& fqn = parameter.fqn();
      const int64_t numel = parameter.numel();
      if (!absl::StartsWith(fqn, "h.")) {
        root += 2 * numel;
      } else if (!attention &&
                 (absl::StrContains(fqn, ".ln_1.") || absl::StrContains(fqn, ".attn."))) {
        continue;  // is not used
      } else if (parameter.shape_size() > 1) {
        matrix = std::max(matrix, numel);
      } else {
        const bool of_norm = absl::StrContains(fqn, ".ln_");
        if (of_norm) norm = std::max(norm, numel);
        vector = std::max(vector, numel);
      }
    }
  }
  return (root + matrix + vector + 3 * norm) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

Activations GptActivations(const v1::Plan& plan, const v1::ModelSource& model,
                           const v1::ActivationSpec& pass) {
  const GptNumels numels = NumelsOf(model, pass);
  const bool attention = !model.has_attention() || model.attention();
  Activations result;
  result.certainty = v1::Forecast::EXACT;
  result.kept.assign(plan.units_size(), 0);
  __int128 total = 0;
  const auto add = [&](const char* name, int64_t modules, __int128 bytes, const char* note) {
    total += bytes;
    if (bytes == 0) return;
    v1::ActivationForecast* part = &result.classes.emplace_back();
    part->set_class_name(name);
    part->set_modules(modules);
    part->set_bytes(Clamped(bytes));
    part->set_certainty(v1::Forecast::EXACT);
    part->set_note(note);
  };
  if (pass.recompute() == "unit") {
    add("Block", model.layers(), model.layers() * numels.input * 4, "inputs alone");
    add("Block again", 1, numels.block * 4, "one block's, computed again in its backward");
  } else {
    add("Block", model.layers(), model.layers() * (numels.input + numels.block) * 4, "");
  }
  add("GPT", 1, numels.root * 4, "logits, and scratch that all blocks share");
  add("stand-ins", 1, StandInBytes(plan, attention),
      "float32 copies of one block's and the root's parameters and gradients");
  std::stable_sort(result.classes.begin(), result.classes.end(),
                   [](const v1::ActivationForecast& a, const v1::ActivationForecast& b) {
                     return a.bytes() > b.bytes();
                   });
  result.constant = result.total = Clamped(total);
  return result;
}

}  // namespace tessera
