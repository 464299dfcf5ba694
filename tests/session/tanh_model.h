// A small network with a loss, for what a training loop can express: in float32 on what a session
// unshards (TanhRank), and apart from that in double on whole parameters, with gradients by central
// differences, so that the two have nothing in common (TanhLoss, TanhTrain).
//
// An example is a token and the token to predict. x = emb[token]; for each of three blocks
// x += tanh(w x + b), with + c inside where the example says so; the logits are the products of x
// and the rows of emb (used a second time, as head.weight); the loss is their cross-entropy. Units:
// h.0, h.1, h.2 (class Block: w [5, 5], b [5], c [5]) and the root (emb.weight [11, 5]).
#ifndef TESSERA_TESTS_SESSION_TANH_MODEL_H_
#define TESSERA_TESTS_SESSION_TANH_MODEL_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "worker/session.h"

namespace tessera {

inline constexpr int kTanhBlocks = 3;
inline constexpr int kTanhTokens = 11;
inline constexpr int kTanhWidth = 5;

struct TanhExample {
  int token = 0;
  int target = 0;
  bool uses_c = true;
  bool passes_h1 = false;  // block h.1 is left out
};
using TanhBatch = std::vector<TanhExample>;

// SGD without decay, so that an error in a gradient is an error in a parameter. `unshard`: slots or
// resident.
v1::JobSpec TanhJob(const std::string& unshard);

// A rank's part, in float32.
class TanhRank {
 public:
  // What a forward leaves for its backward.
  struct Tape {
    TanhBatch batch;
    // [example, width]: what goes into each block and, last, into the head.
    std::vector<std::vector<float>> inputs;
    // [example, width]: each block's tanh; recomputed where the backward says so.
    std::vector<std::vector<float>> tanhs;
    std::vector<float> probabilities;  // [example, token]
  };
  enum class Recompute { kNo, kInsideBackward, kAroundBackward };
  struct BackwardOptions {
    // The weight of a tape's mean loss.
    float scale = 1;
    // Forget the tapes' tanhs and make them again, with a second use of the unit inside the use for
    // the backward or the other way round.
    Recompute recompute = Recompute::kNo;
    // Reduce h.2 only when the gradients of h.1 are there too.
    bool reduce_late = false;
  };

  explicit TanhRank(Session& session) : session_(session) {}

  // The sum of the examples' losses.
  absl::StatusOr<double> Forward(const TanhBatch& batch, Phase phase, Tape* tape);
  // Gradients of all tapes, a unit at a time, and its Reduce. Gradients that no example of this
  // rank contributes to are not asked for.
  absl::Status Backward(std::vector<Tape> tapes, const BackwardOptions& options);

 private:
  absl::Status BackwardBlock(int block, std::vector<Tape>& tapes,
                             std::vector<std::vector<float>>& dx, Recompute recompute);
  absl::Status AddGradient(int unit, const std::string& fqn, const std::vector<float>& gradient);

  Session& session_;
};

// Whole parameters by FQN.
using TanhValues = std::map<std::string, std::vector<double>>;
absl::StatusOr<TanhValues> TanhSummonAll(Session& session);

// The mean loss of a batch.
double TanhLoss(const TanhValues& values, const TanhBatch& batch);
// What `steps` steps of SGD make of `values`. The loss of a step is `loss` of the parameters.
TanhValues TanhTrain(TanhValues values, int64_t steps, double learning_rate,
                     const std::function<double(const TanhValues&, int64_t step)>& loss);

}  // namespace tessera

#endif  // TESSERA_TESTS_SESSION_TANH_MODEL_H_
