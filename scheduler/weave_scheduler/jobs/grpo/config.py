"""What a ``kind: grpo`` job is made of: the task, the model, the batch and the optimiser.

Nothing here imports torch, so that a spec can be read and refused without it. Every unknown key,
wrong type or value out of range is one line that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from weave_rt.errors import UsageError

__all__ = ["GrpoConfig"]

# Not strict, because YAML reads 1e-3 as text.
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]


class GrpoConfig(BaseModel):
    """Settings of one GRPO job.

    One iteration samples ``group_size`` answers to each of ``prompts_per_step`` questions and
    trains on ``group_keep`` of each. All prompts of one iteration have the same length, so that no
    tensor is ever padded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    task: str
    """Name of a reasoning-gym data set; its own verifier grades the answers."""
    task_options: dict[str, Any] = {}
    """Passed to the data set as they are; ``seed`` and ``size`` are set by the job."""
    task_size: PositiveInt = 2048
    """Questions in the job's data set."""
    max_new_tokens: PositiveInt
    """Most characters of an answer. A shorter one needs room for the mark that ends it."""

    d_model: PositiveInt = 128
    """Width of the residual stream."""
    n_layers: PositiveInt = 2
    """Transformer blocks."""
    n_heads: PositiveInt = 4
    """Attention heads; must divide ``d_model``."""
    tie_embeddings: bool = False
    """Whether the output projection is the token embedding."""

    prompts_per_step: PositiveInt = 16
    """Groups (questions) in one iteration."""
    group_size: PositiveInt = 48
    """Answers sampled and graded for each question. More of them: longer rollouts."""
    group_keep: Annotated[int, Field(ge=2, multiple_of=2)] = 16
    """Answers of each group that are trained on, one half the worst and one half the best."""
    temperature: _Positive = 1.0
    """Softmax temperature of sampling, and of the probabilities that are trained."""

    epochs: PositiveInt = 1
    """Passes over what is kept of one iteration. More of them: longer training."""
    minibatches: PositiveInt = 2
    """Optimiser steps in one pass; must divide ``prompts_per_step * group_keep``."""
    clip_eps: Annotated[float, Field(gt=0, lt=1, strict=False)] = 0.2
    """The probability ratio is clipped to ``1 - clip_eps .. 1 + clip_eps``."""
    entropy_coef: _NotNegative = 0.005
    """Weight of the entropy bonus, in nats per token; 0 turns it off."""
    learning_rate: _Positive = 5e-4
    """Of AdamW, constant."""
    weight_decay: _NotNegative = 0.0
    """Of AdamW."""
    max_grad_norm: _Positive = 1.0
    """Gradients are scaled down to this norm."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> GrpoConfig:
        """Builds a config from the ``config:`` block of a job; raises UsageError in one line."""
        try:
            return cls.model_validate(dict(mapping))
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            got = f", got {first['input']!r}" if where and first["type"] != "missing" else ""
            message = first["msg"].removeprefix("Value error, ")
            raise UsageError(f"grpo config: {where}{message}{got}") from None

    @property
    def sampled(self) -> int:
        """Answers sampled in one iteration."""
        return self.prompts_per_step * self.group_size

    @property
    def trained(self) -> int:
        """Answers trained on in one iteration."""
        return self.prompts_per_step * self.group_keep

    @model_validator(mode="after")
    def _check_together(self) -> GrpoConfig:
        """Refuses values that are wrong only beside one another."""
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads must divide d_model, got {self.n_heads} and {self.d_model}")
        if self.group_keep > self.group_size:
            raise ValueError(
                "group_keep must not exceed group_size, "
                f"got {self.group_keep} and {self.group_size}"
            )
        if self.trained % self.minibatches:
            raise ValueError(
                "minibatches must divide prompts_per_step * group_keep, "
                f"got {self.minibatches} and {self.trained}"
            )
        taken = sorted({"seed", "size"} & self.task_options.keys())
        if taken:
            raise ValueError(f"task_options must not set {taken[0]}, which the job sets")
        return self
