"""The plan as a drawing in text: who holds which node when, over two periods. Pure."""

from __future__ import annotations

import string
from collections.abc import Sequence

from weave_scheduler.groupmath import longest_phases, mean_phases, turns_of
from weave_scheduler.groupsim import simulate_slices
from weave_scheduler.model import POOLS, Group, Intra, node_name
from weave_scheduler.units import format_duration

__all__ = ["draw_group"]

_WARM = 4  # iterations of every job before the drawing begins
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_NODES = 16  # rows at most
_LAPS = 200  # iterations of one job during one of another, at most


def draw_group(
    group: Group,
    intra: Intra,
    period_s: float,
    order: Sequence[int] | None = None,
    *,
    worst: bool = True,
    width: int = 72,
) -> list[str]:
    """Lines: one per node, a letter per job, ``.`` idle, ``~`` switching; then who is who."""
    turns = turns_of(group, longest_phases if worst else mean_phases)
    alone = [float(turn.solo) for turn in turns]
    if max(alone) > _LAPS * min(alone):
        return ["  not drawn: the lengths of the jobs' iterations differ too much"]
    slices = simulate_slices(turns, intra, _WARM + 3, order=order, pairs=group.pairs)
    first = max(float(one.granted) for one in slices if one.iteration == _WARM and one.step == 0)
    span = 2 * period_s
    names = [node_name(pool, node) for pool in POOLS for node in group.nodes(pool)]
    wide = max(len(name) for name in names)
    lines = []
    for name in names[:_NODES]:
        row = ["."] * width
        for one in slices:
            if name in turns[one.job].steps[one.step].nodes:
                letter = _LETTERS[one.job % len(_LETTERS)]
                begun, freed = float(one.begun), float(one.freed)
                _fill(row, (float(one.granted) - first) / span, (begun - first) / span, "~")
                _fill(row, (begun - first) / span, (freed - first) / span, letter)
        lines.append(f"{name:>{wide}} |{''.join(row)}|")
    if len(names) > _NODES:
        lines.append(f"{'':>{wide}}  and {len(names) - _NODES} nodes more")
    end = format_duration(span)
    lines.append(f"{'':>{wide}}  0{end:>{width - 1}}")
    who = [
        f"{_LETTERS[at % len(_LETTERS)]} {member.job.name}"
        for at, member in enumerate(group.members)
    ]
    lines.append(f"{'':>{wide}}  {', '.join(who)}; . idle, ~ switch")
    return lines


def _fill(row: list[str], start: float, end: float, letter: str) -> None:
    """Cells whose middle lies in [start, end), given as shares of the row."""
    width = len(row)
    low = max(0, round(start * width))
    high = min(width, round(end * width))
    for cell in range(low, high):
        row[cell] = letter
