"""The builtin gpt in PyTorch, written from its description alone, and its data.

For torch_compare.py. Parameters have Tessera's names and shapes.
"""

import json
import math
import pathlib

import numpy
import torch
import torch.nn.functional as F
from torch import nn

TEXT = pathlib.Path("/usr/share/common-licenses")
MASK = (1 << 32) - 1


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight is [in, out]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, values):
        return values @ self.weight.to(values.dtype) + self.bias.to(values.dtype)


class LayerNorm(nn.LayerNorm):
    def forward(self, values):
        weight, bias = self.weight.to(values.dtype), self.bias.to(values.dtype)
        return F.layer_norm(values, self.normalized_shape, weight, bias, self.eps)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width)

    def forward(self, values):
        batch, length, width = values.shape
        split = self.c_attn(values).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(attended.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = Conv1D(width, 4 * width)
        self.c_proj = Conv1D(4 * width, width)

    def forward(self, values):
        return self.c_proj(F.gelu(self.c_fc(values), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, values):
        values = values + self.attn(self.ln_1(values))
        return values + self.mlp(self.ln_2(values))


class Gpt(nn.Module):
    """Computes in `dtype`, whatever that of the parameters."""

    def __init__(self, layers, width, heads, context, vocab, dtype=torch.float32):
        super().__init__()
        self.dtype = dtype
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = LayerNorm(width)

    def forward(self, tokens, targets):
        """The mean loss in nats."""
        positions = torch.arange(tokens.shape[1])
        values = self.wte(tokens).to(self.dtype) + self.wpe(positions).to(self.dtype)
        for block in self.h:
            values = block(values)
        logits = F.linear(self.ln_f(values), self.wte.weight.to(self.dtype))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def read_safetensors(path):
    """FQN -> float32 tensor."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = numpy.frombuffer(data[begin:end], numpy.float32).reshape(entry["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    for _ in range(10):
        product_0, product_1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (product_1 >> 32) ^ counter[1] ^ key[0],
            product_1 & MASK,
            (product_0 >> 32) ^ counter[3] ^ key[1],
            product_0 & MASK,
        ]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return value


class Batches:
    """The windows of the training text that Tessera's steps see, all ranks together."""

    def __init__(self, seed, global_batch, context):
        text = b"".join(
            path.read_bytes()
            for path in sorted(TEXT.iterdir())
            if path.is_file() and not path.is_symlink()
        )
        self._text = numpy.frombuffer(text[: len(text) - len(text) // 10], numpy.uint8)
        self._key = [seed & MASK, seed >> 32]
        self._batch, self._context = global_batch, context

    def _start(self, index):
        stream = fnv1a("training windows")
        words = philox([index & MASK, index >> 32, stream & MASK, stream >> 32], self._key)
        return ((words[1] << 32 | words[0]) * (len(self._text) - self._context)) >> 64

    def step(self, step):
        """(tokens, targets) of step `step`, from 1."""
        first = (step - 1) * self._batch
        rows = [
            self._text[start : start + self._context + 1]
            for start in map(self._start, range(first, first + self._batch))
        ]
        windows = torch.from_numpy(numpy.stack(rows).astype(numpy.int64))
        return windows[:, :-1], windows[:, 1:]


def learning_rate(optimizer, step, steps):
    warmup = optimizer["warmup_steps"]
    if step < warmup:
        return optimizer["lr"] * step / warmup
    progress = (step - warmup) / (steps - warmup)
    return optimizer["lr"] * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)


def make_optimizer(model):
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
