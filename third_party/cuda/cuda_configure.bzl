"""Finds CUDA (with NCCL's header) at CUDA_HOME or /usr/local/cuda and makes the repository @cuda of it.

@cuda//:cuda.bzl has CUDA_FOUND and CUDA_HOME. Where CUDA is found, @cuda//:cudart has the headers and the static runtime, so that
what links it starts on machines with no driver. Where it isn't, the repository is empty and targets that need it are left
out of the build (if_cuda in //third_party/cuda:cuda_library.bzl); with TESSERA_REQUIRE_CUDA (`--config=cuda`) that is an error.
NCCL itself is opened at run time: only its header is needed here.
"""

_NEEDED = [
    "bin/nvcc",
    "include/cuda_runtime_api.h",
    "include/nccl.h",
    "lib64/libcudart_static.a",
]

# Headers that host code includes, and what these include. nvcc finds its own.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cudart",
    srcs = ["lib64/libcudart_static.a"],
    hdrs = glob(
        ["include/*.h", "include/*.hpp", "include/crt/*", "include/nccl_device/**/*.h"],
        exclude = ["include/cudnn*", "include/cupti*", "include/cusparse*", "include/curand*"],
    ),
    includes = ["include"],
    linkopts = ["-ldl", "-lpthread", "-lrt"],
)
"""

def _cuda_configure(repository_ctx):
    home = repository_ctx.os.environ.get("CUDA_HOME", "") or "/usr/local/cuda"
    missing = [path for path in _NEEDED if not repository_ctx.path(home + "/" + path).exists]
    found = not missing
    if not found and repository_ctx.os.environ.get("TESSERA_REQUIRE_CUDA", ""):
        fail("CUDA was asked for, but %s has no %s; set CUDA_HOME" % (home, ", ".join(missing)))
    if found:
        repository_ctx.symlink(home + "/include", "include")
        repository_ctx.symlink(home + "/lib64", "lib64")
    repository_ctx.file("BUILD", _BUILD if found else "")
    repository_ctx.file(
        "cuda.bzl",
        "CUDA_FOUND = %s\nCUDA_HOME = \"%s\"\n" % (found, home if found else ""),
    )

cuda_configure = repository_rule(
    implementation = _cuda_configure,
    configure = True,
    environ = [
        "CUDA_HOME",
        "TESSERA_REQUIRE_CUDA",
    ],
    local = True,
)
