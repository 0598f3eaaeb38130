"""Random groups, and rules of other schedulers, for tests of the group mathematics."""

from __future__ import annotations

import heapq
from dataclasses import replace

from weave_scheduler.groupmath import Step, Turn

TRAIN = frozenset({"train:0"})


def rollout_nodes(*numbers):
    return frozenset(f"rollout:{number}" for number in numbers)


def common_turns(rollout, train, nodes=None, sync=None, lag=None, switch=0):
    """One rollout and one training per job; ``sync`` as a latency, ``lag`` of a migrated tail."""
    turns = []
    for job, (r, t) in enumerate(zip(rollout, train, strict=True)):
        own = rollout_nodes(*(nodes[job] if nodes else (0,)))
        steps = [
            Step("rollout", r, own, foreground=switch, lag=lag[job] if lag else 0),
            Step("train", t, TRAIN, (0,), foreground=switch),
        ]
        if sync is not None:
            steps.append(Step("weight_sync", sync[job], frozenset(), (1,)))
        turns.append(Turn(f"job{job}", tuple(steps)))
    return tuple(turns)


def random_turns(rng, pair=None, switches=True):
    """One to four jobs with any mix of rewards, syncs of every mode, evaluations and tails."""
    pair = rng.random() < 0.5 if pair is None else pair
    turns = []
    for job in range(rng.randint(1, 4)):
        own = rollout_nodes(*((0,) if pair else rng.sample(range(3), rng.randint(1, 2))))
        lag = rng.choice([0, rng.randint(1, 20)])
        steps = [Step("rollout", rng.randint(1, 60), own, lag=lag)]
        if rng.random() < 0.4:
            steps.append(Step("reward", rng.randint(1, 20), frozenset(), (0,)))
        steps.append(Step("train", rng.randint(1, 60), TRAIN, (len(steps) - 1,)))
        mode = rng.choice(["none", "latency", "publish", "direct", "direct"])
        held = {"latency": frozenset(), "publish": TRAIN, "direct": TRAIN | own}
        if mode != "none":
            steps.append(Step("weight_sync", rng.randint(1, 10), held[mode], (len(steps) - 1,)))
        if rng.random() < 0.2:
            steps.append(Step("eval", rng.randint(1, 10), own, (len(steps) - 1,)))
        if switches:
            steps = [
                replace(step, foreground=rng.randint(0, 3), background=rng.randint(0, 20))
                if step.nodes
                else step
                for step in steps
            ]
        turns.append(Turn(f"job{job}", tuple(steps)))
    return tuple(turns)


def drawn_turns(rng, turns, iterations):
    """The same shapes with durations of their own in every iteration."""
    return tuple(
        tuple(
            replace(
                turn,
                steps=tuple(
                    replace(
                        step,
                        seconds=rng.randint(1, 60),
                        lag=rng.randint(1, 20) if step.lag else 0,
                    )
                    for step in turn.steps
                ),
            )
            for _ in range(iterations)
        )
        for turn in turns
    )


def lead_limited_means(rollout, train, nodes, iterations=200):
    """Mean iterations where no job may be more than one iteration ahead of the slowest.

    First come, first served per node; who is ahead is held before the queue.
    """
    jobs = range(len(rollout))
    done = [0 for _ in jobs]
    ends = [[] for _ in jobs]
    held, queues, running = list(jobs), {node: [] for node in (*nodes, "train")}, {}
    ahead, planned, now = [], 0, 0
    while min(done) < iterations:
        for job in [job for job in held if done[job] - min(done) <= 1]:
            held.remove(job)
            queues[nodes[job]].append(job)
        for node, queue in queues.items():
            if queue and node not in running:
                running[node] = queue.pop(0)
                taken = (train if node == "train" else rollout)[running[node]]
                planned += 1
                heapq.heappush(ahead, (now + taken, planned, node))
        now, _, node = heapq.heappop(ahead)
        job = running.pop(node)
        if node == "train":
            done[job] += 1
            ends[job].append(now)
            held.append(job)
        else:
            queues["train"].append(job)
    half = iterations // 2
    return [(own[-1] - own[half]) / (len(own) - 1 - half) for own in ends]
