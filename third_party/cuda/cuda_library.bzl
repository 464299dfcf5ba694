"""Targets that exist only where CUDA does, and .cu files compiled with nvcc."""

load("@cuda//:cuda.bzl", "CUDA_FOUND", "CUDA_HOME")

# Machine code for A100 and H100, and PTX that later GPUs compile for themselves.
_CODE = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
]

# As the rest of the build has it: no fused multiply-add, so that bits don't depend on it. Division and square root are IEEE's
# and denormals are kept by default. Relaxed constexpr: device code may call the constexpr functions of common/float_bits.h.
_FLAGS = [
    "-std=c++20",
    "-O3",
    "-fmad=false",
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-ffp-contract=off",
]

def if_cuda(targets):
    """`targets` where CUDA was found, else nothing."""
    return targets if CUDA_FOUND else []

def tessera_cuda_library(name, src, hdrs, deps = []):
    """The kernels of one .cu file. `hdrs` are all headers of ours that it includes. Nothing where there is no CUDA."""
    if not CUDA_FOUND:
        return
    native.genrule(
        name = name + "_nvcc",
        srcs = [src] + hdrs,
        outs = [name + ".o"],
        cmd = "%s/bin/nvcc -c $(location %s) -o $@ -I. %s" % (CUDA_HOME, src, " ".join(_CODE + _FLAGS)),
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [name + ".o"],
        deps = deps + ["@cuda//:cudart"],
    )
