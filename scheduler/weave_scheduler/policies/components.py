"""Bounds of first come, first served where jobs share some rollout nodes and the training pool.

For jobs of one rollout and then one training, all training on the same nodes. Under ``fifo`` two
jobs that share a rollout node can never overtake each other: who enters the rollout queue first
leaves it first, enters and leaves the training queue first, and enters the rollout queue first
again. So all jobs of a component (connected by shared rollout nodes) have one long-run period P_c.
Jobs of different components may lap each other; hence the load of a node bounds its own component
only. With the shortest limit L_c of each component:

    P_c >= load of each of its rollout nodes, its trainings together, its longest solo iteration;
    sum over all components of (trainings of c) / P_c <= 1, else the training pool is overrun.

And no iteration of a job is ever longer than the rollouts of its component and the trainings of the
whole group together: when it enters a queue, no other job has more than one phase in front.
That holds for any durations up to those given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weave_scheduler.groupmath import Step, Turn

__all__ = ["component_labels", "components", "fifo_lower_bounds", "fifo_upper_bounds"]


def components(turns: Sequence[Turn]) -> list[int] | None:
    """The number of each job's component; None where the jobs are of another kind."""
    if not turns or any(not _common(turn) for turn in turns):
        return None
    if len({turn.steps[1].nodes for turn in turns}) != 1:
        return None
    return component_labels([turn.steps[0].nodes for turn in turns])


def component_labels(nodes: Sequence[frozenset[Any]]) -> list[int]:
    """A number per set of nodes, the same where they are connected by shared nodes."""
    label = list(range(len(nodes)))
    for at, mine in enumerate(nodes):
        for before in range(at):
            if nodes[before] & mine and label[before] != label[at]:
                old, new = label[at], label[before]
                label = [new if one == old else one for one in label]
    return label


def fifo_lower_bounds(turns: Sequence[Turn]) -> list[float] | None:
    """Per job the largest term of its own component; None where the jobs are of another kind."""
    label = components(turns)
    if label is None:
        return None
    lowest = [0.0] * len(turns)
    for component in set(label):
        inside = [at for at, one in enumerate(label) if one == component]
        shared = len(inside) > 1
        trained = sum(_seconds(turns[at].steps[1], shared) for at in inside)
        terms = [trained]
        loads: dict[str, list[Step]] = {}
        for at in inside:
            roll, train = turns[at].steps
            alone = not any(
                other != at and turns[other].steps[0].nodes & roll.nodes for other in inside
            )
            terms.append(_seconds(roll, not alone) + _seconds(train, shared))
            for node in roll.nodes:
                loads.setdefault(node, []).append(roll)
        terms += [sum(_seconds(step, len(steps) > 1) for step in steps) for steps in loads.values()]
        for at in inside:
            lowest[at] = max(terms)
    return lowest


def fifo_upper_bounds(turns: Sequence[Turn]) -> list[float] | None:
    """Per job the longest iteration there can be; None where the jobs are of another kind."""
    label = components(turns)
    if label is None or any(step.background for turn in turns for step in turn.steps):
        return None
    trained = sum(_seconds(turn.steps[1], True) for turn in turns)
    return [
        trained
        + sum(
            _seconds(turn.steps[0], True)
            for turn, other in zip(turns, label, strict=True)
            if other == mine
        )
        for mine in label
    ]


def _common(turn: Turn) -> bool:
    if len(turn.steps) != 2:
        return False
    roll, train = turn.steps
    pools = [{name.split(":")[0] for name in step.nodes} for step in turn.steps]
    return pools == [{"rollout"}, {"train"}] and train.after == (0,) and not roll.lag


def _seconds(step: Step, switched: bool) -> float:
    return float(step.seconds) + (float(step.foreground) if switched else 0.0)
