"""Trains the builtin gpt with Tessera and with PyTorch, from the same weights on the same batches.

    python tests/measure/torch_compare.py [--steps=50]

Needs what torch_requirements.txt lists, and a build. PyTorch trains it plainly in one process and,
where its gloo can, under FSDP (fully_shard) in as many processes as Tessera has workers. Prints a
table of differences and exits 1 where one is beyond its limit.
"""

import argparse
import json
import math
import os
import pathlib
import sys
import tempfile

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.func import functional_call

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(pathlib.Path(__file__).parent)]

from programs import Sandbox  # noqa: E402
from reflection import Reflection  # noqa: E402
from torch_models import (  # noqa: E402
    Batches,
    Gpt,
    learning_rate,
    make_optimizer,
    read_safetensors,
)

WORKERS = 2
MODEL = {"layers": 4, "width": 128, "heads": 4, "context": 64, "vocab": 256}
OPTIMIZER = {"lr": 1e-3, "warmup_steps": 10}
GLOBAL_BATCH, SEED = 24, 1
PATIENCE = 1800

# Largest differences: gradients of step 1 in parts of each tensor's largest, losses in parts of the
# loss, parameters absolute.
FLOAT32_LIMITS = {"gradients": 1e-5, "losses": 1e-5, "parameters": 1e-3}
BFLOAT16_LIMITS = {"losses": 5e-3}
# Another computation: shown for orientation.
NO_LIMITS = {"losses": math.inf}


def job(name, steps, **more):
    spec = {
        "name": name,
        "model": {"builtin": "gpt", **MODEL},
        "seed": SEED,
        "steps": steps,
        "global_batch": GLOBAL_BATCH,
        "eval_every": 1,
        "optimizer": OPTIMIZER,
        "mesh": {"min_workers": WORKERS, "max_workers": WORKERS},
    }
    return {**spec, **more}


def first_gradients(sandbox, path, directory):
    """FQN -> averaged gradient of the first step, put together from the ranks' shards."""
    out = sandbox.tessera("plan", f"--job={path}", f"--world_size={WORKERS}", "--output=json").out
    planned = json.loads("\n".join(out))
    gradients = {}
    units = zip(planned["plan"]["units"], planned["layout"]["units"], strict=True)
    for index, (unit, layout) in enumerate(units):
        shards = [directory / f"unit-{index}-rank-{rank}.f32" for rank in range(WORKERS)]
        flat = numpy.concatenate([numpy.fromfile(shard, numpy.float32) for shard in shards])
        for parameter, place in zip(unit["parameters"], layout["parameters"], strict=True):
            begin, numel = int(place["offset"]), int(parameter["numel"])
            shape = [int(extent) for extent in parameter["shape"]]
            values = flat[begin : begin + numel].reshape(shape).copy()
            gradients[parameter["fqn"]] = torch.from_numpy(values)
    return gradients


def train_tessera(spec):
    """(losses, first gradients, last parameters)"""
    with tempfile.TemporaryDirectory() as directory:
        sandbox = Sandbox(pathlib.Path(directory))
        shards = sandbox.directory / "gradients"
        shards.mkdir()
        output = sandbox.directory / "output"
        path = sandbox.write_job({**spec, "checkpoint": {"dir": str(output)}})
        try:
            _, address = sandbox.start_coordinator()
            agent = sandbox.start_agent(address, WORKERS, TESSERA_TEST_GRADIENTS_DIR=str(shards))
            submitted = sandbox.tessera("submit", f"--job={path}", f"--coordinator={address}")
            assert submitted.code == 0, submitted.transcript()
            client = Reflection(address)
            events = list(client.stream("JobService", "WatchJob", PATIENCE, name=spec["name"]))
            client.close()
            assert events[-1]["job"]["state"] == "SUCCEEDED", agent.transcript()
            losses = {
                int(event["progress"]["step"]): event["progress"]["loss"]
                for event in events
                if "progress" in event
            }
            assert sorted(losses) == list(range(1, spec["steps"] + 1))
            gradients = first_gradients(sandbox, path, shards)
        finally:
            sandbox.close()
        return (
            [losses[step] for step in sorted(losses)],
            gradients,
            read_safetensors(output / "export" / "model.safetensors"),
        )


def train(model, loss_of, steps, whole=lambda tensor: tensor):
    """(losses, first gradients, last parameters)"""
    optimizer = make_optimizer(model)
    losses, gradients = [], None
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(OPTIMIZER, step, steps)
        loss = loss_of(step)
        loss.backward()
        losses.append(loss.detach().double())
        if step == 1:
            gradients = {n: whole(p.grad).clone() for n, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    parameters = {n: whole(p.detach()).clone() for n, p in model.named_parameters()}
    return losses, gradients, parameters


def start(weights, compute=torch.float32):
    model = Gpt(**MODEL, dtype=compute)
    missing = model.load_state_dict(weights)
    assert not missing.missing_keys and not missing.unexpected_keys
    return model


def train_plain(weights, steps, bfloat16=False, compute=torch.float32):
    """One process; with `bfloat16` the masters stay float32 and are cast for each pass."""
    model, batches = start(weights, compute), Batches(SEED, GLOBAL_BATCH, MODEL["context"])

    def loss_of(step):
        tokens, targets = batches.step(step)
        if not bfloat16:
            return model(tokens, targets)
        low = {name: value.bfloat16() for name, value in model.named_parameters()}
        return functional_call(model, low, (tokens, targets))

    losses, gradients, parameters = train(model, loss_of, steps)
    return [loss.item() for loss in losses], gradients, parameters


def fsdp_rank(rank, directory, steps, bfloat16):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/meet", rank=rank, world_size=WORKERS)
    model = start(torch.load(f"{directory}/weights"))
    policy = MixedPrecisionPolicy()
    if bfloat16:
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    mesh = init_device_mesh("cpu", (WORKERS,))
    for block in model.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    batches = Batches(SEED, GLOBAL_BATCH, MODEL["context"])
    own = slice(rank * GLOBAL_BATCH // WORKERS, (rank + 1) * GLOBAL_BATCH // WORKERS)

    def loss_of(step):
        tokens, targets = batches.step(step)
        return model(tokens[own], targets[own])

    losses, gradients, parameters = train(model, loss_of, steps, lambda t: t.full_tensor())
    for loss in losses:
        dist.all_reduce(loss)
    if rank == 0:
        means = [loss.item() / WORKERS for loss in losses]
        torch.save((means, gradients, parameters), f"{directory}/trained")
    dist.destroy_process_group()


def train_fsdp(weights, steps, bfloat16=False):
    with tempfile.TemporaryDirectory() as directory:
        torch.save(weights, f"{directory}/weights")
        torch.multiprocessing.spawn(fsdp_rank, (directory, steps, bfloat16), nprocs=WORKERS)
        return torch.load(f"{directory}/trained")


def without_key_bias(name, tensor):
    """The key's bias has a true gradient of zero: what is there is rounding."""
    if not name.endswith("c_attn.bias"):
        return tensor
    query, _, value = tensor.chunk(3)
    return torch.cat([query, value])


def worst(left, right, relative):
    """The largest difference of two dicts of tensors, and where it is."""
    assert sorted(left) == sorted(right)
    found = []
    for name, tensor in left.items():
        ours, theirs = (without_key_bias(name, t.double()) for t in (tensor, right[name]))
        difference = (ours - theirs).abs().max() / (theirs.abs().max() if relative else 1)
        found.append((difference.item(), name))
    return max(found)


class Table:
    def __init__(self):
        print("| run | against | what | largest difference | limit | where |")
        print("|---|---|---|---|---|---|")
        self.failed = False

    def add(self, run, against, what, difference, limit, where):
        row = f"| {run} | {against} | {what} | {difference:.2e} | {limit:.0e} | {where} |"
        print(row, flush=True)
        self.failed |= not difference <= limit

    def compare(self, run, against, ours, theirs, limits):
        if "gradients" in limits:
            difference, where = worst(ours[1], theirs[1], relative=True)
            self.add(run, against, "gradients", difference, limits["gradients"], where)
        difference, step = max(
            (abs(left - right) / right, step)
            for step, (left, right) in enumerate(zip(ours[0], theirs[0], strict=True), start=1)
        )
        self.add(run, against, "losses", difference, limits["losses"], f"step {step}")
        if "parameters" in limits:
            difference, where = worst(ours[2], theirs[2], relative=False)
            self.add(run, against, "parameters", difference, limits["parameters"], where)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    flags = parser.parse_args()
    steps = flags.steps
    torch.set_num_threads(1)

    # A step of learning rate 0 leaves the initial weights.
    optimizer = {"lr": 0, "warmup_steps": 0}
    weights = train_tessera(job("weights", 1, optimizer=optimizer))[2]
    table = Table()
    if "float32" in flags.dtypes.split(","):
        ours = train_tessera(job("float32", steps))
        table.compare("float32", "plain PyTorch", ours, train_plain(weights, steps), FLOAT32_LIMITS)
        table.compare("float32", "FSDP, gloo", ours, train_fsdp(weights, steps), FLOAT32_LIMITS)
    if "bfloat16" in flags.dtypes.split(","):
        low = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
        ours = train_tessera(job("bfloat16", steps, mixed_precision=low))
        plain = train_plain(weights, steps, bfloat16=True)
        table.compare("bfloat16", "plain PyTorch", ours, plain, BFLOAT16_LIMITS)
        fsdp = train_fsdp(weights, steps, bfloat16=True)
        table.compare("bfloat16", "FSDP, gloo", ours, fsdp, BFLOAT16_LIMITS)
        low = train_plain(weights, steps, bfloat16=True, compute=torch.bfloat16)
        table.compare("bfloat16", "plain PyTorch that computes in it", ours, low, NO_LIMITS)
        table.compare("PyTorch's own", "plain PyTorch that computes in it", plain, low, NO_LIMITS)
    print(f"\ntorch {torch.__version__}, {steps} steps, {WORKERS} workers")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
