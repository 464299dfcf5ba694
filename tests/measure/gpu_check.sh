#!/usr/bin/env bash
# For a machine with a GPU: builds with CUDA, shows for which GPUs there is machine code, runs the kernels against the CPU's
# loops and jobs of one rank through CUDA and NCCL (of two where there are two GPUs), prints figures of the kernels, and
# runs a job of one rank through `tessera run`.
# Exits with 0: all as it should be; 1: something is not; 3: there is no GPU here, or no CUDA to build with.
#
#   tests/measure/gpu_check.sh [--no_build]     --no_build: with the programs of TESSERA_BIN (bazel-bin) as they are
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${TESSERA_BIN:-$root/bazel-bin}
check=$bin/tests/measure/gpu_check
cuda=${CUDA_HOME:-/usr/local/cuda}

case "${1:-}" in
  --no_build) ;;
  "")
    if ! [[ -x $cuda/bin/nvcc ]]; then
      echo "gpu_check: no CUDA in $cuda: nothing was checked; set CUDA_HOME" >&2
      exit 3
    fi
    (cd "$root" && bazel build --config=cuda //client:tessera //coordinator:tessera-coordinator //worker:tessera-worker \
      //tests/measure:gpu_check //tests/measure:gpu_job) || exit 1
    ;;
  *)
    echo "gpu_check: $1 is no argument; see the head of $0" >&2
    exit 2
    ;;
esac
if ! [[ -x $check ]]; then
  echo "gpu_check: no $check: nothing was checked; build where CUDA is" >&2
  exit 3
fi

if [[ -x $cuda/bin/cuobjdump ]]; then
  echo "gpu_check: machine code for $("$cuda/bin/cuobjdump" --list-elf "$check" | grep -o 'sm_[0-9]*' | sort -u | xargs)"
fi
"$check"
echo "gpu_check: a job of one rank through tessera run"
"$bin/client/tessera" run --job="$root/tests/measure/gpu_job.json" --workers=1 -- "$bin/tests/measure/gpu_job" || exit 1
echo "gpu_check: all as it should be"
