"""Models that golden_vectors.py names."""

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy

from golden_trees import CLASSES


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.nested_lin = nn.Linear(1, 1, bias=False)


class WrapNet(nn.Module):
    def __init__(self):
        super().__init__()
        for i in (1, 2, 3):
            self.add_module(f"lin{i}", nn.Linear(1, 1, bias=False))
        self.lin4 = Nested()


def nested_wrap():
    return WrapNet()


def nested_pair():
    net = WrapNet()
    net.lin1 = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    return net


class NormNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(10, 10, bias=False)
        self.bn1 = nn.BatchNorm1d(10)
        self.bn2 = nn.BatchNorm2d(10)
        self.bn3 = nn.BatchNorm3d(10)
        self.sync_bn = nn.SyncBatchNorm(10)


def norm_net():
    return NormNet()


class Container(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = NormNet()


def norm_container():
    return Container()


class SharedTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(23, 16)
        self.transformer = nn.Transformer(
            d_model=16, nhead=2, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=8
        )
        self.output_proj = nn.Linear(16, 23)
        self.output_proj.weight = self.embed_tokens.weight
        self.register_buffer("vocab_bias", torch.zeros(23))


def shared_transformer():
    return SharedTransformer()


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)


class LoraAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(32, 32, bias=False)
        self.lora_A = nn.Linear(32, 8, bias=False)
        self.lora_B = nn.Linear(8, 32, bias=False)
        self.k_proj = nn.Linear(32, 32, bias=False)
        self.v_proj = nn.Linear(32, 32, bias=False)
        self.o_proj = nn.Linear(32, 32, bias=False)
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            proj.weight.requires_grad_(False)


class LoraMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj1 = nn.Linear(32, 128, bias=False)
        self.proj2 = nn.Linear(128, 32, bias=False)
        self.requires_grad_(False)


class LoraDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = LoraAttention()
        self.mlp = LoraMlp()
        self.inp_layernorm = nn.LayerNorm(32).requires_grad_(False)
        self.post_attn_layernorm = nn.LayerNorm(32).requires_grad_(False)


class LoraModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(100, 32).requires_grad_(False)
        self.layers = nn.ModuleList(LoraDecoder() for _ in range(4))
        self.norm = nn.LayerNorm(32).requires_grad_(False)


def lora_model():
    return LoraModel()


def lora_units(model, with_a):
    """FQNs in post-order of lora_A (or not), lora_B, the attentions and the decoders."""
    names = (["lora_A"] if with_a else []) + ["lora_B"]
    fqns = []
    for i in range(len(model.layers)):
        fqns += [f"layers.{i}.attn.{name}" for name in names]
        fqns += [f"layers.{i}.attn", f"layers.{i}"]
    return fqns


def strict_frozen_error(with_a, ignore):
    """What FSDP says of a LoraModel with use_orig_params=False; "" if it takes it."""
    model = lora_model()
    wanted = {model.get_submodule(fqn) for fqn in lora_units(model, with_a)}
    ignored = {"ignored_states": [model.get_parameter(fqn) for fqn in ignore]} if ignore else {}
    try:
        FSDP(
            model,
            auto_wrap_policy=CustomPolicy(lambda module: module in wanted),
            use_orig_params=False,
            device_id=torch.device("cpu"),
            **ignored,
        )
    except ValueError as error:
        return str(error)
    return ""


class Stack(nn.Module):
    """An embedding and layers: one side of a translation model."""

    def __init__(self, embed_tokens, layers):
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = layers


class Translation(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder


def vaswani_big(tied=True):
    """The big model of "Attention Is All You Need": 210M parameters where embeddings are tied."""
    width, hidden, vocab = 1024, 4096, 32768
    with torch.device("meta"):
        sides = []
        for layer in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
            layers = nn.ModuleList(layer(width, 16, hidden) for _ in range(6))
            sides.append(Stack(nn.Embedding(vocab, width), layers))
        encoder, decoder = sides
        decoder.output_projection = nn.Linear(width, vocab, bias=False)
        decoder.output_projection.weight = decoder.embed_tokens.weight
        if tied:
            decoder.embed_tokens.weight = encoder.embed_tokens.weight
            decoder.output_projection.weight = encoder.embed_tokens.weight
    return Translation(encoder, decoder)


class GptBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 25)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.Linear(4 * width, width))


class Gpt(nn.Module):
    def __init__(self, layers, width, vocab, context):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(GptBlock(width) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight


def gpt_large():
    """As GPT-2 XL; one block has 30.7M parameters, four of them pass the default threshold."""
    with torch.device("meta"):
        return Gpt(layers=8, width=1600, vocab=50257, context=1024)


CLASSES.update(
    {
        cls.__name__: cls
        for cls in (NormNet, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    }
)
