#include "worker/workloads/bfloat16_linear.h"

#include <utility>

#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

const uint16_t* Rounded(const float* values, int64_t numel, std::vector<uint16_t>& memory) {
  memory.resize(static_cast<size_t>(numel));
  CastFloat32(values, numel, v1::BFLOAT16, memory.data());
  return memory.data();
}

// Numbers that bfloat16 holds exactly: quarters from -2 to 2, in no simple order.
std::vector<float> Quarters(int64_t numel, int64_t stride) {
  std::vector<float> values(static_cast<size_t>(numel));
  for (int64_t i = 0; i < numel; ++i) {
    values[i] = static_cast<float>(i * stride % 17 - 8) / 4;
  }
  return values;
}

// a [m, k] x b [k, n], each with its strides. Exact: sums of a few sixteenths.
std::vector<float> Product(int64_t m, int64_t k, int64_t n, const std::vector<float>& a,
                           int64_t a_row, int64_t a_column, const std::vector<float>& b,
                           int64_t b_row, int64_t b_column) {
  std::vector<float> product(static_cast<size_t>(m * n), 0.0f);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t x = 0; x < k; ++x) {
        product[i * n + j] += a[i * a_row + x * a_column] * b[x * b_row + j * b_column];
      }
    }
  }
  return product;
}

absl::Status TryProducts() {
  constexpr int64_t kRows = 24, kIn = 48, kOut = 40;
  TESSERA_ASSIGN_OR_RETURN(BFloat16Linear layer,
                           BFloat16Linear::Create({.rows = kRows, .in = kIn, .out = kOut}));
  const std::vector<float> x = Quarters(kRows * kIn, 5), w = Quarters(kIn * kOut, 7),
                           bias = Quarters(kOut, 3), dy = Quarters(kRows * kOut, 11);
  std::vector<uint16_t> weight;
  Rounded(w.data(), kIn * kOut, weight);
  std::vector<float> y(kRows * kOut), dx(kRows * kIn), dw(kIn * kOut), db(kOut);
  TESSERA_RETURN_IF_ERROR(layer.Forward(x.data(), weight.data(), bias.data(), y.data()));
  TESSERA_RETURN_IF_ERROR(layer.BackwardInput(weight.data(), dy.data(), dx.data()));
  TESSERA_RETURN_IF_ERROR(layer.BackwardParameters(x.data(), dy.data(), {dw.data()}, {db.data()}));

  std::vector<float> expected = Product(kRows, kIn, kOut, x, kIn, 1, w, kOut, 1);
  for (int64_t i = 0; i < kRows * kOut; ++i) expected[i] += bias[i % kOut];
  const bool right =
      y == expected && dx == Product(kRows, kOut, kIn, dy, kOut, 1, w, 1, kOut) &&
      dw == Product(kIn, kRows, kOut, x, 1, kIn, dy, kOut, 1) &&
      db == Product(1, kRows, kOut, std::vector<float>(kRows, 1.0f), 0, 1, dy, kOut, 1);
  return right ? absl::OkStatus()
               : absl::InternalError("a product of bfloat16 by oneDNN is not the right one");
}

}  // namespace

const absl::Status& CheckBFloat16() {
  static const absl::Status& status =
      *new absl::Status(ProcessorMultipliesBFloat16()
                            ? TryProducts()
                            : absl::UnimplementedError("the processor does not multiply bfloat16"));
  return status;
}

BFloat16Linear::BFloat16Linear(const LinearLayer::Options& options, LinearKernels kernels)
    : options_(options), kernels_(std::move(kernels)) {}

absl::StatusOr<BFloat16Linear> BFloat16Linear::Create(const LinearLayer::Options& options) {
  TESSERA_ASSIGN_OR_RETURN(
      LinearKernels kernels,
      MakeBFloat16Linear(options.rows, options.in, options.out, options.order, options.has_bias));
  return BFloat16Linear(options, std::move(kernels));
}

absl::Status BFloat16Linear::Forward(const float* input, const uint16_t* weight, const float* bias,
                                     float* output) {
  const uint16_t* source = Rounded(input, options_.rows * options_.in, input_);
  if (!options_.has_bias) {
    return kernels_.forward->Run(
        {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, output}});
  }
  return kernels_.forward->Run({{DNNL_ARG_SRC, source},
                                {DNNL_ARG_WEIGHTS, weight},
                                {DNNL_ARG_BIAS, bias},
                                {DNNL_ARG_DST, output}});
}

absl::Status BFloat16Linear::BackwardInput(const uint16_t* weight, const float* output_gradient,
                                           float* input_gradient) {
  return kernels_.backward_input->Run(
      {{DNNL_ARG_DIFF_SRC, input_gradient},
       {DNNL_ARG_WEIGHTS, weight},
       {DNNL_ARG_DIFF_DST,
        Rounded(output_gradient, options_.rows * options_.out, output_gradient_)}});
}

absl::Status BFloat16Linear::BackwardParameters(const float* input, const float* output_gradient,
                                                GradientTarget weight, GradientTarget bias) {
  const uint16_t* source = Rounded(input, options_.rows * options_.in, input_);
  const uint16_t* gradient =
      Rounded(output_gradient, options_.rows * options_.out, output_gradient_);
  if (!options_.has_bias) {
    return kernels_.backward_parameters->Run({{DNNL_ARG_SRC, source},
                                              {DNNL_ARG_DIFF_DST, gradient},
                                              {DNNL_ARG_DIFF_WEIGHTS, weight.data}});
  }
  return kernels_.backward_parameters->Run({{DNNL_ARG_SRC, source},
                                            {DNNL_ARG_DIFF_DST, gradient},
                                            {DNNL_ARG_DIFF_WEIGHTS, weight.data},
                                            {DNNL_ARG_DIFF_BIAS, bias.data}});
}

}  // namespace tessera
