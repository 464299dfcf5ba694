// A whole trainer on a Session: a log-linear model that predicts the next byte of a text from the
// six before it, each of which adds a row of its table to the logits. Every rank is a process of
// this program; char_model.json says what the model, the text and the figures are.
//
//   tessera run --job=tests/examples/char_model.json -- bazel-bin/tests/examples/char_model
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/session.h"

using tessera::Phase, tessera::Session;

constexpr int kBack = 6;     // tables: units back.1 to back.6; the bias is in the root
constexpr int kBytes = 256;  // rows of a table, and logits

// Forward and backward for the bytes at `places` of `text`. Returns the sum of their losses.
absl::StatusOr<double> Learn(Session& session, const std::string& text,
                             const std::vector<size_t>& places) {
  const auto name = [](int back) { return back == 0 ? "" : absl::StrCat("back.", back); };
  const auto fqn = [&](int back) { return back == 0 ? "bias" : name(back) + ".weight"; };
  // Where example e's row of the parameter begins.
  const auto row = [&](int back, size_t e) {
    return back == 0 ? 0 : static_cast<uint8_t>(text[places[e] - back]) * kBytes;
  };
  std::vector<float> logits(places.size() * kBytes);
  for (int back = 0; back <= kBack; ++back) {
    TESSERA_ASSIGN_OR_RETURN(const int unit, session.FindUnit(name(back)));
    TESSERA_ASSIGN_OR_RETURN(const auto lease, session.Unshard(unit, Phase::kForward));
    TESSERA_ASSIGN_OR_RETURN(const tessera::TensorView table, lease.Parameter(fqn(back)));
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] += table.as<float>()[row(back, i / kBytes) + i % kBytes];
    }
  }
  double loss = 0;
  for (size_t e = 0; e < places.size(); ++e) {  // logits become their gradients
    float* p = logits.data() + e * kBytes;
    float sum = 0;
    for (int byte = 0; byte < kBytes; ++byte) sum += p[byte] = std::exp(p[byte]);
    for (int byte = 0; byte < kBytes; ++byte) p[byte] /= sum * static_cast<float>(places.size());
    const uint8_t next = static_cast<uint8_t>(text[places[e]]);
    loss -= std::log(p[next] * static_cast<float>(places.size()));
    p[next] -= 1 / static_cast<float>(places.size());
  }
  for (int back = kBack; back >= 0; --back) {
    TESSERA_ASSIGN_OR_RETURN(const int unit, session.FindUnit(name(back)));
    TESSERA_ASSIGN_OR_RETURN(const auto gradient, session.GradientView(unit, fqn(back)));
    float* values = gradient.view.as<float>();
    if (!gradient.accumulate) std::fill_n(values, gradient.view.numel, 0.0f);
    for (size_t i = 0; i < logits.size(); ++i) {
      values[row(back, i / kBytes) + i % kBytes] += logits[i];
    }
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  return loss;
}

void Report(Session& session, const tessera::StepResult& result) {
  const int64_t steps = session.job().steps();
  if (session.rank() != 0 || (result.step % 20 != 0 && result.step != steps && !result.drain))
    return;
  tessera::v1::Progress progress;
  progress.set_step(result.step);
  progress.set_steps(steps);
  progress.set_loss(result.loss_mean);
  session.ReportProgress(progress);
}

// One step. Whether it was the last: the job's, or that of a drain (`tessera drain`).
absl::StatusOr<bool> Step(Session& session, const std::string& text) {
  const auto& job = session.job();
  TESSERA_ASSIGN_OR_RETURN(const tessera::StepInfo info,
                           session.BeginStep({.learning_rate = job.optimizer().lr()}));
  if (info.recovered.has_value()) {  // some rank was lost after it, perhaps before it said so
    Report(session, *info.recovered);
    if (info.recovered->drain) return true;
  }
  if (info.step > job.steps()) return true;
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  std::vector<size_t> places(job.global_batch() / session.world_size());
  std::mt19937_64 random(info.step * session.world_size() + session.rank());
  for (size_t& place : places) place = kBack + random() % (text.size() - kBack);
  TESSERA_ASSIGN_OR_RETURN(const double loss, Learn(session, text, places));
  const auto count = static_cast<int64_t>(places.size());
  TESSERA_ASSIGN_OR_RETURN(const tessera::StepResult result,
                           session.EndStep({.loss_sum = loss, .loss_count = count}));
  Report(session, result);
  return result.step == job.steps() || result.drain;
}

absl::Status Train(Session& session) {
  std::ifstream file(session.job().data(), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() <= kBack)
    return absl::InvalidArgumentError("data: no text in " + session.job().data());
  for (;;) {
    absl::StatusOr<bool> done = Step(session, text);
    if (done.ok() && !*done) continue;
    const absl::Status status = done.ok() ? session.Finish() : done.status();
    // A rank was lost, and its host starts it again: the next BeginStep says where all go on.
    if (!tessera::GenerationEnded(status)) return status;
  }
}

int main() {
  const auto session = Session::Join({});
  const absl::Status status = session.ok() ? Train(**session) : session.status();
  if (status.ok()) return 0;
  fprintf(stderr, "char_model: %s\n", std::string(status.message()).c_str());
  if (session.ok()) (*session)->Abort(status);  // the other ranks end too, and know why
  return 1;
}
