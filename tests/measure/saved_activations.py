"""Bytes a token that blocks of Hugging Face's models save for their backward, as on a GPU.

    python tests/measure/saved_activations.py

Needs torch and transformers, which nothing else here does. Prints `BLOCK DTYPE BYTES`. Attention is
replaced by one operation that saves query, key, value and its output, and dropout by one that saves
a byte an element, as fused kernels do. coordinator/activations_test.cc holds the forecast's
formulas against what this printed with torch 2.5.1 and transformers 4.57.3.
"""

import torch
import torch.nn.functional as F
import transformers as hf

BATCH, SEQUENCE, WIDTH = 2, 128, 256


class FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        batch, heads, length, features = query.shape
        output = query.new_zeros(batch, length, heads, features).transpose(1, 2)
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient, gradient


class ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(torch.ones(values.shape, dtype=torch.uint8))
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def dropout(values, p=0.5, training=True, inplace=False):
    return ByteDropout.apply(values) if training and p > 0 else values


def saved_bytes(block, call):
    """Of the storages that the call saves, each once, without the block's parameters."""
    block.train()
    parameters = {p.untyped_storage().data_ptr() for p in block.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor keeps it there
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(size for size, _ in saved.values())


def rotary(model, values):
    positions = torch.arange(SEQUENCE)[None].expand(BATCH, SEQUENCE)
    return {"position_embeddings": model.rotary_emb(values, positions), "attention_mask": None}


def blocks():
    """Name, model, its first block, the block's other arguments."""
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": 688,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": 100,
    }
    for name in ("Llama", "Mistral", "Qwen2", "Mixtral"):
        config = getattr(hf, f"{name}Config")(**sizes)
        model = getattr(hf, f"{name}Model")(config)
        yield name.lower(), model, model.layers[0], rotary
    model = hf.GPT2Model(hf.GPT2Config(n_embd=WIDTH, n_head=8, n_layer=1, vocab_size=100))
    yield "gpt2", model, model.h[0], lambda *_: {}
    sizes["intermediate_size"] = 1024
    model = hf.BertModel(hf.BertConfig(**sizes))
    yield "bert", model, model.encoder.layer[0], lambda *_: {}
    for function in ("relu", "gated-gelu"):
        config = hf.T5Config(
            d_model=WIDTH,
            d_kv=64,
            num_heads=6,
            d_ff=1024,
            num_layers=1,
            vocab_size=100,
            feed_forward_proj=function,
        )
        model = hf.T5EncoderModel(config)
        positions = {"cache_position": torch.arange(SEQUENCE)}
        yield f"t5-{function}", model, model.encoder.block[0], lambda *_, p=positions: p


def main():
    F.scaled_dot_product_attention = lambda q, k, v, *_, **__: FusedAttention.apply(q, k, v)
    F.dropout = dropout
    torch.nn.Dropout.forward = lambda self, values: dropout(values, self.p, self.training)
    for dtype in (torch.bfloat16, torch.float32):
        for name, model, block, others in blocks():
            model.to(dtype)
            values = torch.randn(BATCH, SEQUENCE, WIDTH, dtype=dtype, requires_grad=True)
            arguments = others(model, values)
            size = saved_bytes(block, lambda b=block, v=values, a=arguments: b(v, **a))
            print(name, str(dtype).removeprefix("torch."), size // (BATCH * SEQUENCE))


if __name__ == "__main__":
    main()
