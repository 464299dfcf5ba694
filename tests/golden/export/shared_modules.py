"""A torch model with all that the exporter has a rule for (tests/golden/export_goldens.py)."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = norm
        self.dropout = None


class Wide(Block):
    """A subclass: its base_classes have Block."""


class SharedModules(nn.Module):
    """Modules that are there twice, tied and frozen parameters, buffers of all sorts."""

    def __init__(self, width=8):
        super().__init__()
        norm = nn.LayerNorm(width)
        self.embedding = nn.Embedding(16, width)
        self.blocks = nn.ModuleList([Block(width, norm), Wide(width, norm)])
        self.again = self.blocks[1]
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embedding.weight
        # Another Parameter object over the same storage.
        self.alias = nn.Parameter(self.blocks[0].linear.weight.data)
        self.frozen = nn.Parameter(torch.empty(3, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("ids", torch.empty(1, 4, dtype=torch.int64))
        self.register_buffer("mask", torch.empty(4, dtype=torch.bool), persistent=False)
        self.register_buffer("rotations", torch.empty(4, dtype=torch.complex64))
        self.register_buffer("nothing", None)
