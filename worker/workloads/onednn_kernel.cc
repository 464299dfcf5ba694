#include "worker/workloads/onednn_kernel.h"

#include <exception>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dnnl.hpp"

// Of the OpenMP runtime that oneDNN computes with. Declared here, because <omp.h> belongs to one
// compiler.
extern "C" void omp_set_num_threads(int threads);

namespace tessera {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

// Runs `body` and turns what it throws into a status.
template <typename Body>
auto Guarded(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) {
      return absl::ResourceExhaustedError(absl::StrCat("oneDNN: out of memory: ", error.what()));
    }
    return absl::InternalError(
        absl::StrCat("oneDNN: ", error.what(), " (status ", static_cast<int>(error.status), ")"));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "out of memory while preparing or running a oneDNN primitive");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("oneDNN: ", error.what()));
  }
}

absl::Status CheckPositive(std::initializer_list<int64_t> extents) {
  for (const int64_t extent : extents) {
    if (extent <= 0)
      return absl::InvalidArgumentError(absl::StrCat("a kernel's extent is ", extent));
  }
  return absl::OkStatus();
}

// The process's only CPU engine: kernels of one process share oneDNN's cache of compiled
// primitives.
const dnnl::engine& Engine() {
  static const dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::desc Desc(memory::dims dims, Tag tag, memory::data_type type = memory::data_type::f32) {
  return memory::desc(std::move(dims), type, tag);
}

}  // namespace

class OneDnnKernel::Impl {
 public:
  using Arguments = std::vector<std::pair<int, memory::desc>>;

  Impl(dnnl::primitive primitive, const Arguments& arguments)
      : primitive_(std::move(primitive)), stream_(Engine()) {
    for (const auto& [id, desc] : arguments) {
      memories_.emplace(id, memory(desc, Engine(), DNNL_MEMORY_NONE));
    }
  }

  absl::Status Run(std::initializer_list<Argument> arguments) {
    if (arguments.size() != memories_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a kernel of ", memories_.size(),
                                                     " arguments was given ", arguments.size()));
    }
    for (const Argument& argument : arguments) {
      const auto found = memories_.find(argument.id);
      if (found == memories_.end() || argument.data == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("a kernel's argument ", argument.id, " is unknown or null"));
      }
      // oneDNN knows one kind of handle for what it reads and what it writes.
      found->second.set_data_handle(const_cast<void*>(argument.data));
    }
    primitive_.execute(stream_, memories_);
    stream_.wait();
    return absl::OkStatus();
  }

 private:
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::unordered_map<int, memory> memories_;
};

namespace {

KernelPtr MakeKernel(dnnl::primitive primitive, const OneDnnKernel::Impl::Arguments& arguments) {
  return std::make_unique<OneDnnKernel>(
      std::make_unique<OneDnnKernel::Impl>(std::move(primitive), arguments));
}

// What is multiplied is of `operand`, what comes out float32.
LinearKernels CompileLinear(int64_t rows, int64_t in, int64_t out, WeightOrder order, bool has_bias,
                            memory::data_type operand) {
  const memory::desc source = Desc({rows, in}, Tag::ab, operand);
  // oneDNN's weights are [out, in]; the tag says in which order they lie in memory.
  const Tag order_tag = order == WeightOrder::kOutIn ? Tag::ab : Tag::ba;
  const memory::desc weights = Desc({out, in}, order_tag, operand);
  const memory::desc bias = has_bias ? Desc({out}, Tag::a) : memory::desc();
  const memory::desc result = Desc({rows, out}, Tag::ab);
  const memory::desc source_gradient = Desc({rows, in}, Tag::ab);
  const memory::desc weights_gradient = Desc({out, in}, order_tag);
  const memory::desc result_gradient = Desc({rows, out}, Tag::ab, operand);

  const dnnl::inner_product_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, source, weights, bias, result}, Engine());
  const dnnl::inner_product_backward_data::primitive_desc backward_input(
      {source_gradient, weights, result_gradient}, Engine(), forward);
  const dnnl::inner_product_backward_weights::primitive_desc backward_parameters(
      {source, weights_gradient, bias, result_gradient}, Engine(), forward);

  OneDnnKernel::Impl::Arguments forward_arguments = {
      {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, result}};
  OneDnnKernel::Impl::Arguments parameter_arguments = {{DNNL_ARG_SRC, source},
                                                       {DNNL_ARG_DIFF_DST, result_gradient},
                                                       {DNNL_ARG_DIFF_WEIGHTS, weights_gradient}};
  if (has_bias) {
    forward_arguments.emplace_back(DNNL_ARG_BIAS, bias);
    parameter_arguments.emplace_back(DNNL_ARG_DIFF_BIAS, bias);
  }
  return {
      MakeKernel(dnnl::inner_product_forward(forward), forward_arguments),
      MakeKernel(dnnl::inner_product_backward_data(backward_input),
                 {{DNNL_ARG_DIFF_SRC, source_gradient},
                  {DNNL_ARG_WEIGHTS, weights},
                  {DNNL_ARG_DIFF_DST, result_gradient}}),
      MakeKernel(dnnl::inner_product_backward_weights(backward_parameters), parameter_arguments)};
}

LayerNormKernels CompileLayerNorm(int64_t rows, int64_t width, float epsilon) {
  const memory::desc data = Desc({rows, width}, Tag::ab);
  const memory::desc statistics = Desc({rows}, Tag::a);
  const memory::desc scale = Desc({width}, Tag::a);
  const dnnl::normalization_flags flags =
      dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;
  const dnnl::layer_normalization_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, data, statistics, epsilon, flags}, Engine());
  const dnnl::layer_normalization_backward::primitive_desc backward(
      {dnnl::prop_kind::backward, data, data, statistics, epsilon, flags}, Engine(), forward);
  return {MakeKernel(dnnl::layer_normalization_forward(forward), {{DNNL_ARG_SRC, data},
                                                                  {DNNL_ARG_SCALE, scale},
                                                                  {DNNL_ARG_SHIFT, scale},
                                                                  {DNNL_ARG_DST, data},
                                                                  {DNNL_ARG_MEAN, statistics},
                                                                  {DNNL_ARG_VARIANCE, statistics}}),
          MakeKernel(dnnl::layer_normalization_backward(backward), {{DNNL_ARG_SRC, data},
                                                                    {DNNL_ARG_MEAN, statistics},
                                                                    {DNNL_ARG_VARIANCE, statistics},
                                                                    {DNNL_ARG_SCALE, scale},
                                                                    {DNNL_ARG_SHIFT, scale},
                                                                    {DNNL_ARG_DIFF_DST, data},
                                                                    {DNNL_ARG_DIFF_SRC, data},
                                                                    {DNNL_ARG_DIFF_SCALE, scale},
                                                                    {DNNL_ARG_DIFF_SHIFT, scale}})};
}

dnnl::eltwise_forward::primitive_desc EltwiseForward(dnnl::algorithm algorithm,
                                                     const memory::desc& data) {
  return {{dnnl::prop_kind::forward_training, algorithm, data, 0.0f, 0.0f}, Engine()};
}

GeluKernels CompileGelu(int64_t rows, int64_t width) {
  const memory::desc data = Desc({rows, width}, Tag::ab);
  const auto forward = EltwiseForward(dnnl::algorithm::eltwise_gelu_tanh, data);
  const dnnl::eltwise_backward::primitive_desc backward(
      {dnnl::algorithm::eltwise_gelu_tanh, data, data, 0.0f, 0.0f}, Engine(), forward);
  return {MakeKernel(dnnl::eltwise_forward(forward), {{DNNL_ARG_SRC, data}, {DNNL_ARG_DST, data}}),
          MakeKernel(dnnl::eltwise_backward(backward),
                     {{DNNL_ARG_SRC, data}, {DNNL_ARG_DIFF_DST, data}, {DNNL_ARG_DIFF_SRC, data}})};
}

}  // namespace

void SetComputeThreads(int threads) { omp_set_num_threads(threads < 1 ? 1 : threads); }

OneDnnKernel::OneDnnKernel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OneDnnKernel::~OneDnnKernel() = default;

absl::Status OneDnnKernel::Run(std::initializer_list<Argument> arguments) {
  return Guarded([&] { return impl_->Run(arguments); });
}

bool ProcessorMultipliesBFloat16() {
  // An instruction set's value has the bits of all that it includes.
  constexpr int kNeeded = dnnl_cpu_isa_avx512_core_bf16;
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
}

absl::StatusOr<LinearKernels> MakeLinear(int64_t rows, int64_t in, int64_t out, WeightOrder order,
                                         bool has_bias) {
  if (absl::Status status = CheckPositive({rows, in, out}); !status.ok()) return status;
  return Guarded([&]() -> absl::StatusOr<LinearKernels> {
    return CompileLinear(rows, in, out, order, has_bias, memory::data_type::f32);
  });
}

absl::StatusOr<LinearKernels> MakeBFloat16Linear(int64_t rows, int64_t in, int64_t out,
                                                 WeightOrder order, bool has_bias) {
  if (absl::Status status = CheckPositive({rows, in, out}); !status.ok()) return status;
  return Guarded([&]() -> absl::StatusOr<LinearKernels> {
    return CompileLinear(rows, in, out, order, has_bias, memory::data_type::bf16);
  });
}

absl::StatusOr<LayerNormKernels> MakeLayerNorm(int64_t rows, int64_t width, float epsilon) {
  if (absl::Status status = CheckPositive({rows, width}); !status.ok()) return status;
  return Guarded(
      [&]() -> absl::StatusOr<LayerNormKernels> { return CompileLayerNorm(rows, width, epsilon); });
}

absl::StatusOr<GeluKernels> MakeGelu(int64_t rows, int64_t width) {
  if (absl::Status status = CheckPositive({rows, width}); !status.ok()) return status;
  return Guarded([&]() -> absl::StatusOr<GeluKernels> { return CompileGelu(rows, width); });
}

absl::StatusOr<KernelPtr> MakeMatmul(const MatmulShape& shape) {
  if (absl::Status status = CheckPositive({shape.groups, shape.m, shape.k, shape.n});
      !status.ok()) {
    return status;
  }
  return Guarded([&]() -> absl::StatusOr<KernelPtr> {
    const memory::desc source =
        Desc({shape.groups, shape.m, shape.k}, shape.transpose_source ? Tag::acb : Tag::abc);
    const memory::desc weights =
        Desc({shape.groups, shape.k, shape.n}, shape.transpose_weights ? Tag::acb : Tag::abc);
    const memory::desc result = Desc({shape.groups, shape.m, shape.n}, Tag::abc);
    const dnnl::matmul::primitive_desc desc({source, weights, result}, Engine());
    return MakeKernel(
        dnnl::matmul(desc),
        {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, result}});
  });
}

absl::StatusOr<KernelPtr> MakeSoftmax(int64_t rows, int64_t columns) {
  if (absl::Status status = CheckPositive({rows, columns}); !status.ok()) return status;
  return Guarded([&]() -> absl::StatusOr<KernelPtr> {
    const memory::desc data = Desc({rows, columns}, Tag::ab);
    const dnnl::softmax_forward::primitive_desc desc({dnnl::prop_kind::forward_inference, data, 1},
                                                     Engine());
    return MakeKernel(dnnl::softmax_forward(desc), {{DNNL_ARG_SRC, data}, {DNNL_ARG_DST, data}});
  });
}

absl::StatusOr<KernelPtr> MakeLogSoftmax(int64_t rows, int64_t columns) {
  if (absl::Status status = CheckPositive({rows, columns}); !status.ok()) return status;
  return Guarded([&]() -> absl::StatusOr<KernelPtr> {
    const memory::desc data = Desc({rows, columns}, Tag::ab);
    const dnnl::logsoftmax_forward::primitive_desc desc(
        {dnnl::prop_kind::forward_inference, data, 1}, Engine());
    return MakeKernel(dnnl::logsoftmax_forward(desc), {{DNNL_ARG_SRC, data}, {DNNL_ARG_DST, data}});
  });
}

absl::StatusOr<KernelPtr> MakeExp(int64_t rows, int64_t columns) {
  if (absl::Status status = CheckPositive({rows, columns}); !status.ok()) return status;
  return Guarded([&]() -> absl::StatusOr<KernelPtr> {
    const memory::desc data = Desc({rows, columns}, Tag::ab);
    return MakeKernel(dnnl::eltwise_forward(EltwiseForward(dnnl::algorithm::eltwise_exp, data)),
                      {{DNNL_ARG_SRC, data}, {DNNL_ARG_DST, data}});
  });
}

}  // namespace tessera
