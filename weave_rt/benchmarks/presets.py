"""What a job of a known size keeps on one GPU, tensor by tensor: the presets of ``weave bench``.

Totals are one eighth of the footprint that WEAVE's paper gives for a node of eight GPUs (arXiv
version, Table 2); weights are those of the dense transformer of that size (public configurations of
Qwen2.5), sharded as the paper says. What is left is the KV cache (rollout) or, after as many bytes
of gradients as of weights, the optimizer's three states per parameter (train). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from weave_rt.errors import UsageError

__all__ = ["PRESETS", "TensorSize", "default_state", "pack", "preset", "scaled"]

ALIGNMENT = 512  # of tensors, bytes
BF16 = 2


@dataclass(frozen=True, slots=True)
class TensorSize:
    """One tensor; `policy` says whether its bytes survive a suspend."""

    name: str
    tag: str
    nbytes: int
    policy: str = "keep"


@dataclass(frozen=True, slots=True)
class _Model:
    hidden: int
    layers: int
    kv_width: int  # key or value heads times their width
    intermediate: int
    vocabulary: int
    tied: bool = False


_MODELS = {
    "3b": _Model(2048, 36, 256, 11008, 151936, tied=True),
    "7b": _Model(3584, 28, 512, 18944, 152064),
    "14b": _Model(5120, 48, 1024, 13824, 152064),
    "32b": _Model(5120, 64, 1024, 27648, 152064),
}

#: name -> (GB of a node of eight GPUs, GPUs that one copy of the weights is split over)
PRESETS: dict[str, tuple[float, int]] = {
    "rollout-3b": (113.4, 1),
    "rollout-7b": (275.7, 1),
    "rollout-14b": (445.4, 1),
    "rollout-32b": (490.3, 2),
    "train-3b": (156.2, 1),
    "train-7b": (240.0, 2),
    "train-14b": (456.1, 2),
    "train-32b": (520.4, 4),
}


def _weights(model: _Model, split: int) -> Iterator[TensorSize]:
    """bf16 weights of one GPU; projections fused as inference engines and Megatron have them."""

    def weight(name: str, *shape: int) -> TensorSize:
        count = 1
        for extent in shape:
            count *= extent
        return TensorSize(name, "weights", count * BF16)

    wide = model.hidden
    yield weight("embed_tokens", model.vocabulary // split, wide)
    for number in range(model.layers):
        layer = f"layers.{number}."
        qkv = (wide + 2 * model.kv_width) // split
        yield weight(layer + "input_layernorm", wide)
        yield weight(layer + "qkv_proj.weight", qkv, wide)
        yield weight(layer + "qkv_proj.bias", qkv)
        yield weight(layer + "o_proj", wide, wide // split)
        yield weight(layer + "post_attention_layernorm", wide)
        yield weight(layer + "gate_up_proj", 2 * model.intermediate // split, wide)
        yield weight(layer + "down_proj", wide, model.intermediate // split)
    yield weight("norm", wide)
    if not model.tied:
        yield weight("lm_head", model.vocabulary // split, wide)


def preset(name: str) -> list[TensorSize]:
    """The tensors of one GPU, unscaled, in bytes. Raises UsageError for an unknown name."""
    if name not in PRESETS:
        raise UsageError(f"preset {name!r} is not one of {', '.join(PRESETS)}")
    pool, size = name.split("-")
    node_gb, split = PRESETS[name]
    model = _MODELS[size]
    weights = list(_weights(model, split))
    total, held = round(node_gb * 1e9 / 8), sum(tensor.nbytes for tensor in weights)
    if pool == "rollout":
        each = (total - held) // model.layers
        cache = [
            TensorSize(f"kv_cache.{n}", "kv_cache", each, "discard") for n in range(model.layers)
        ]
        return weights + cache
    grads = [replace(t, name=f"{t.name}.grad", tag="grads") for t in weights]
    left = total - 2 * held
    states = [
        TensorSize(f"{t.name}.{state}", "optimizer", round(left * t.nbytes / held / 3))
        for t in weights
        for state in ("master", "exp_avg", "exp_avg_sq")
    ]
    return weights + grads + states


def default_state(nbytes: int) -> tuple[list[TensorSize], float]:
    """Weights of a 7B model, all to keep, `nbytes` of them; and how much smaller that is."""
    weights = [tensor for tensor in preset("rollout-7b") if tensor.tag == "weights"]
    factor = nbytes / sum(tensor.nbytes for tensor in weights)
    return scaled(weights, factor), factor


def scaled(tensors: Sequence[TensorSize], factor: float) -> list[TensorSize]:
    """As many tensors, each `factor` times as large, in whole steps of 512 bytes."""
    return [
        replace(t, nbytes=max(round(t.nbytes * factor / ALIGNMENT), 1) * ALIGNMENT) for t in tensors
    ]


def pack(
    tensors: Sequence[TensorSize], factor: float = 1.0
) -> tuple[list[int], list[tuple[int, int, int, bool]]]:
    """The device allocations that torch's caching allocator makes for `tensors` in this order, and
    where each lies: (allocation, offset, bytes, keep).

    Its sizes (https://docs.pytorch.org/docs/stable/notes/cuda.html, c10/cuda: up to 1 MiB from
    pieces of 2 MiB, below 10 MiB from pieces of 20 MiB, else alone in steps of 2 MiB) are for
    unscaled tensors; `factor` scales them likewise."""
    mib = (1 << 20) * factor
    allocations: list[int] = []
    places: list[tuple[int, int, int, bool]] = []
    open_pieces: dict[int, tuple[int, int]] = {}  # bytes of a piece -> allocation, bytes used
    for tensor in tensors:
        keep = tensor.policy == "keep"
        if tensor.nbytes >= 10 * mib:
            unit = max(round(2 * mib), ALIGNMENT)
            places.append((len(allocations), 0, tensor.nbytes, keep))
            allocations.append(-(-tensor.nbytes // unit) * unit)
            continue
        piece = max(round((2 if tensor.nbytes <= mib else 20) * mib), tensor.nbytes)
        where, used = open_pieces.get(piece, (-1, piece))
        if where < 0 or used + tensor.nbytes > piece:
            where, used = len(allocations), 0
            allocations.append(piece)
        places.append((where, used, tensor.nbytes, keep))
        open_pieces[piece] = (where, used + tensor.nbytes)
    return allocations, places
