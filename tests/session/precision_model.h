// A model of any dtype whose gradients a test gives element by element.
//
// One block h.0 (class Block: w [7, 5], b [5]), a batch norm bn (class BatchNorm1d: weight [5]) and
// the root's own weight emb [11, 5]. Every parameter starts as 1. The optimizer is SGD without
// decay, so that what a step does to a parameter is the gradient times the learning rate.
#ifndef TESSERA_TESTS_SESSION_PRECISION_MODEL_H_
#define TESSERA_TESTS_SESSION_PRECISION_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/fakes/thread_ranks.h"
#include "worker/session.h"

namespace tessera {

// As a unit's row of FSDP's table: "" is not given.
struct Precision {
  std::string original = "float32";
  std::string param;
  std::string reduce;
  bool keep = false;
};

v1::JobSpec PrecisionJob(const Precision& precision, const std::string& unshard = "slots");

// Where a gradient is.
struct GradientAt {
  int rank = 0;
  int64_t step = 0;
  int64_t micro_batch = 0;
  std::string fqn;
  int64_t element = 0;
  double parameter = 0;  // as the unit has it, unsharded
};
// Rounded to param_dtype when it is written.
using GradientRule = std::function<double(const GradientAt&)>;

// What is kept of a rank.
struct PrecisionRun {
  std::vector<StepResult> steps;
  std::vector<double> loss_scales;
  std::map<std::string, std::vector<double>> parameters;  // at the end, as Summon gives them
  std::map<std::string, DType> dtypes;
  // By unit's FQN: this rank's reduced gradients of the last step, padding included.
  std::map<std::string, std::vector<double>> gradients;
  std::map<std::string, DType> gradient_dtypes;
};

struct PrecisionSteps {
  int64_t steps = 1;
  int64_t micro_batches = 1;
  bool unsynchronized = false;  // all micro-batches but the last
  double learning_rate = 0.5;
  // (rank, micro-batch, FQN): whether there is a gradient at all.
  std::function<bool(int, int64_t, const std::string&)> has_gradient;
};

// By rank. Errors fail the test.
std::vector<PrecisionRun> RunPrecision(const v1::JobSpec& job, int world_size,
                                       const PrecisionSteps& steps, const GradientRule& rule);

// Elements of any dtype as float64.
std::vector<double> AsDoubles(const void* data, DType dtype, int64_t numel);

}  // namespace tessera

#endif  // TESSERA_TESTS_SESSION_PRECISION_MODEL_H_
