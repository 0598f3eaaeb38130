"""A small decoder-only transformer in float32, and sampling from it with a KV cache.

Pre-norm blocks, learned positions, no dropout (it would draw from the process-wide generator). All
initial weights come from the generator that the caller passes. The model holds parameters only: no
masks, no buffers, nothing that would have to be moved at a switch without being needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Decoder", "DecoderShape", "build_decoder", "cache_shape", "generate"]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder; ``context`` is the most tokens that are ever read of one sequence."""

    vocabulary: int
    context: int
    d_model: int
    n_layers: int
    n_heads: int
    tie_embeddings: bool = False


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a norm and a residual."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor, cache: Tensor | None, filled: int) -> Tensor:
        """``x`` is (batch, n, d_model), ``cache`` (2, batch, heads, context, head width).

        With a cache, the keys and values of ``x`` are written at ``filled`` and attention reads
        exactly what has been written: the slice up to ``filled + n``. What lies behind may be
        garbage of any kind, NaN included, which a mask would let through (NaN times 0 is NaN).
        """
        batch, n, d_model = x.shape
        qkv = self.qkv(self.attention_norm(x))
        heads = qkv.view(batch, n, 3, self.n_heads, d_model // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)  # each (batch, heads, n, head width)
        if cache is not None:
            cache[:, :, :, filled : filled + n] = heads[1:]
            k, v = cache[:, :, :, : filled + n].unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, n, d_model))
        hidden: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return hidden


class Decoder(nn.Module):
    """Token ids to logits."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.d_model)
        self.positions = nn.Embedding(shape.context, shape.d_model)
        self.blocks = nn.ModuleList(
            Block(shape.d_model, shape.n_heads) for _ in range(shape.n_layers)
        )
        self.norm = nn.LayerNorm(shape.d_model)
        self.head = nn.Linear(shape.d_model, shape.vocabulary, bias=False)
        if shape.tie_embeddings:
            self.head.weight = self.tokens.weight

    def forward(
        self, ids: Tensor, *, last: int, cache: Tensor | None = None, filled: int = 0
    ) -> Tensor:
        """Logits (batch, last, vocabulary) after each of the last ``last`` tokens.

        ``ids`` is (batch, n). With a cache (:func:`cache_shape`), ``filled`` tokens are in it
        already and ``ids`` continue them; several at once only at the beginning.
        """
        n = ids.shape[1]
        if filled > 0 and n > 1:
            raise ValueError(f"a cache with {filled} tokens is continued by one token, got {n}")
        x = self.tokens(ids) + self.positions.weight[filled : filled + n]
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[i], filled)
        logits: Tensor = self.head(self.norm(x[:, n - last :]))
        return logits


def build_decoder(shape: DecoderShape, generator: torch.Generator) -> Decoder:
    """A decoder with weights drawn from ``generator``; the global generator is not touched."""
    with torch.device("meta"):  # sizes only, so that torch draws no numbers of its own
        model = Decoder(shape)
    model.to_empty(device="cpu")
    if shape.tie_embeddings:
        model.head.weight = model.tokens.weight
    residual = (2 * shape.n_layers) ** -0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("norm.bias"):
                parameter.zero_()
            else:
                narrow = name.endswith(("out.weight", "down.weight"))
                std = 0.02 if "blocks" not in name else parameter.shape[1] ** -0.5
                parameter.normal_(0.0, std * (residual if narrow else 1.0), generator=generator)
    return model


def cache_shape(shape: DecoderShape, batch: int) -> tuple[int, ...]:
    """(layers, keys and values, batch, heads, context, head width) of a KV cache."""
    width = shape.d_model // shape.n_heads
    return (shape.n_layers, 2, batch, shape.n_heads, shape.context, width)


@torch.no_grad()
def generate(
    model: Decoder, prompts: Tensor, cache: Tensor, chances: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Continues each prompt by one token per row of ``chances``.

    ``prompts`` is (batch, n); ``chances`` (new tokens, batch) holds uniform numbers in [0, 1), one
    per token to draw. Returns the new ids and their log-probabilities, both (batch, new tokens).
    """
    ids = prompts
    filled = 0
    drawn, logps = [], []
    for chance in chances:
        logits = model(ids, last=1, cache=cache, filled=filled)[:, 0]
        logp = F.log_softmax(logits / temperature, dim=-1)
        sums = logp.exp().cumsum(-1)
        # Scaled by the last sum, which rounding leaves near 1: the index stays in range.
        choice = (sums <= chance[:, None] * sums[:, -1:]).sum(-1, keepdim=True)
        filled += ids.shape[1]
        ids = choice.clamp_(max=sums.shape[1] - 1)
        drawn.append(ids)
        logps.append(logp.gather(1, ids))
    return torch.cat(drawn, 1), torch.cat(logps, 1)
