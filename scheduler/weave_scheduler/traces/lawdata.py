"""A duration law as plain data and back, as traces and profiles hold it.

A number is that many seconds, always; else a mapping with ``law``: ``lognormal`` (mean_s, cv,
max_s), ``empirical`` (values_s, limit_s), ``drifting`` (of, start, end, over), ``rollout_lengths``
and ``train_lengths`` (lengths, and their speeds). Wrong data raises ValueError with one line that
begins with the field.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from weave_scheduler.laws import Constant, Drifting, DurationLaw, Empirical, Lognormal
from weave_scheduler.lengths import Lengths, RolloutFromLengths, TrainFromLengths
from weave_scheduler.traces.fields import count, known, listed, number

__all__ = ["law_from_data", "law_to_data"]


def law_from_data(data: object, field: str) -> DurationLaw:
    """The law. Raises ValueError."""
    if not isinstance(data, Mapping):
        return Constant(number(data, field, above=0))
    kind = data.get("law")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        near = difflib.get_close_matches(str(kind), _READERS, n=1)
        hint = f"did you mean {near[0]}" if near else f"allowed: {', '.join(_READERS)}"
        raise ValueError(f"{field}.law: {kind!r} is not known; {hint}")
    try:
        return reader(data, field)
    except ValueError as error:
        raise ValueError(
            str(error) if str(error).startswith(field) else f"{field}: {error}"
        ) from None


def _lognormal(data: Mapping[str, object], field: str) -> DurationLaw:
    known(data, ("law", "mean_s", "cv", "max_s"), field)
    most = data.get("max_s")
    mean_s = number(data.get("mean_s"), f"{field}.mean_s", above=0)
    cv = number(data.get("cv"), f"{field}.cv", least=0)
    max_s = None if most is None else number(most, f"{field}.max_s", least=mean_s)
    return Lognormal(mean_s, cv, max_s)


def _empirical(data: Mapping[str, object], field: str) -> DurationLaw:
    known(data, ("law", "values_s", "limit_s"), field)
    limit = data.get("limit_s")
    values = listed(data.get("values_s"), f"{field}.values_s")
    limit_s = None if limit is None else number(limit, f"{field}.limit_s", above=0)
    return Empirical.of(
        [number(value, f"{field}.values_s.{at}", above=0) for at, value in enumerate(values)],
        limit_s,
    )


def _drifting(data: Mapping[str, object], field: str) -> DurationLaw:
    known(data, ("law", "of", "start", "end", "over"), field)
    return Drifting(
        law_from_data(data.get("of"), f"{field}.of"),
        number(data.get("start"), f"{field}.start", above=0),
        number(data.get("end"), f"{field}.end", above=0),
        count(data.get("over"), f"{field}.over"),
    )


def _rollout(data: Mapping[str, object], field: str) -> DurationLaw:
    known(data, ("law", "lengths", "engines", "base_s", "per_active_s", "fixed_s"), field)
    return RolloutFromLengths(
        _lengths(data.get("lengths"), f"{field}.lengths"),
        count(data.get("engines"), f"{field}.engines"),
        number(data.get("base_s"), f"{field}.base_s", above=0),
        number(data.get("per_active_s"), f"{field}.per_active_s", least=0),
        number(data.get("fixed_s", 0), f"{field}.fixed_s", least=0),
    )


def _train(data: Mapping[str, object], field: str) -> DurationLaw:
    known(data, ("law", "lengths", "s_per_token", "fixed_s"), field)
    return TrainFromLengths(
        _lengths(data.get("lengths"), f"{field}.lengths"),
        number(data.get("s_per_token"), f"{field}.s_per_token", above=0),
        number(data.get("fixed_s", 0), f"{field}.fixed_s", least=0),
    )


def _lengths(data: object, field: str) -> Lengths:
    if not isinstance(data, Mapping):
        raise ValueError(f"{field}: must be a mapping")
    known(data, ("quantiles", "max_tokens", "responses"), field)
    table = listed(data.get("quantiles"), f"{field}.quantiles")
    return Lengths(
        tuple(number(one, f"{field}.quantiles.{at}", least=1) for at, one in enumerate(table)),
        count(data.get("max_tokens"), f"{field}.max_tokens"),
        count(data.get("responses"), f"{field}.responses"),
    )


_READERS: dict[str, Callable[[Mapping[str, object], str], DurationLaw]] = {
    "lognormal": _lognormal,
    "empirical": _empirical,
    "drifting": _drifting,
    "rollout_lengths": _rollout,
    "train_lengths": _train,
}


def law_to_data(law: DurationLaw) -> object:
    """The data from which ``law_from_data`` makes an equal law."""
    match law:
        case Constant(value_s):
            return value_s
        case Lognormal(mean_s, cv, max_s):
            data: dict[str, object] = {"law": "lognormal", "mean_s": mean_s, "cv": cv}
            return data if max_s is None else data | {"max_s": max_s}
        case Empirical(values_s, limit_s):
            data = {"law": "empirical", "values_s": list(values_s)}
            return data if limit_s is None else data | {"limit_s": limit_s}
        case Drifting(inner, start, end, over):
            return {"law": "drifting", "of": law_to_data(inner), "start": start, "end": end,
                    "over": over}  # fmt: skip
        case RolloutFromLengths(lengths, engines, base_s, per_active_s, fixed_s):
            return {"law": "rollout_lengths", "lengths": _lengths_data(lengths),
                    "engines": engines, "base_s": base_s, "per_active_s": per_active_s,
                    "fixed_s": fixed_s}  # fmt: skip
        case TrainFromLengths(lengths, s_per_token, fixed_s):
            return {"law": "train_lengths", "lengths": _lengths_data(lengths),
                    "s_per_token": s_per_token, "fixed_s": fixed_s}  # fmt: skip
    raise ValueError(f"{type(law).__name__} has no form in a file")


def _lengths_data(lengths: Lengths) -> dict[str, object]:
    return {
        "quantiles": list(lengths.quantiles),
        "max_tokens": lengths.max_tokens,
        "responses": lengths.responses,
    }
