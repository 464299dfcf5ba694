"""Times torch.distributed's gloo backend, all-reduce (it has no reduce-scatter on CPUs) and
all-gather of a float32 buffer, with two processes.

    python3 gloo_all_reduce.py 67108864 21        bytes of the whole buffer, timed runs

Prints two medians in seconds: all-reduce, all-gather.
"""

import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def timed(operation, runs):
    seconds = []
    for run in range(-2, runs):
        dist.barrier()
        start = time.perf_counter()
        operation()
        dist.barrier()
        if run >= 0:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def rank_main(rank, ranks, port, size, runs):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    whole = torch.arange(size // 4, dtype=torch.float32) % 1000
    part = whole[: whole.numel() // ranks].clone()
    parts = [torch.empty_like(part) for _ in range(ranks)]
    reduce = timed(lambda: dist.all_reduce(whole, op=dist.ReduceOp.SUM), runs)
    gather = timed(lambda: dist.all_gather(parts, part), runs)
    if rank == 0:
        print(f"{reduce:.9f} {gather:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    mp.spawn(rank_main, args=(2, chosen, int(sys.argv[1]), int(sys.argv[2])), nprocs=2)
