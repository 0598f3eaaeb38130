"""A group in SimPy, written from the rules alone: the oracle of the modes fifo, strict, barrier.

Shares no code with the scheduler but the shape of a turn. A node keeps the phases that hold it or
wait for it in one list; who stands at the front of all its lists runs.
"""

from __future__ import annotations

import simpy


class Node:
    def __init__(self):
        self.line = []  # tokens; the first one runs if it is first everywhere
        self.job, self.begun = None, 0
        self.expected = []  # strict: (job, step) of the visits of one round, with their lag
        self.at = 0


class Token:
    def __init__(self, env, nodes, key):
        self.go = env.event()
        self.nodes, self.key = nodes, key


class Group:
    def __init__(self, turns, mode, iterations, order, rings):
        self.env = simpy.Environment()
        self.turns, self.mode, self.order = turns, mode, order
        self.iterations = iterations
        names = {node for own in turns for step in own[0].steps for node in step.nodes}
        self.nodes = {name: Node() for name in names}
        for name, ring in rings.items():
            self.nodes[name].expected = list(ring)
        self.ends = [[] for _ in turns]
        self.gate, self.at_gate = self.env.event(), 0
        self.starts = []
        for job in order:
            self.env.process(self.job(job))

    def run(self):
        while min(len(ends) for ends in self.ends) < self.iterations:
            self.env.step()
        return [tuple(ends[: self.iterations]) for ends in self.ends]

    def job(self, job):
        own = self.turns[job]
        iteration = 0
        while True:
            if self.mode == "barrier":
                yield from self.barrier(job)
            turn = own[iteration % len(own)]
            over = [self.env.event() for _ in turn.steps]
            for at, step in enumerate(turn.steps):
                self.env.process(self.phase(job, at, step, [over[k] for k in step.after], over[at]))
            yield simpy.AllOf(self.env, over)
            self.ends[job].append(self.env.now)
            iteration += 1

    def barrier(self, job):
        self.at_gate += 1
        if self.at_gate == len(self.turns):
            gate, self.gate, self.at_gate = self.gate, self.env.event(), 0
            gate.succeed()
        else:
            yield self.gate
        yield self.env.timeout(0)  # in the order of the group: all enter at this instant
        for other in self.order:
            if other == job:
                return
            yield self.env.timeout(0)

    def phase(self, job, at, step, after, over):
        yield from after
        nodes = [self.nodes[name] for name in sorted(step.nodes)]
        token = Token(self.env, nodes, (job, at))
        for node in nodes:
            node.line.append(token)
        self.start(nodes)
        if nodes:
            yield token.go
        granted = ready = self.env.now
        wait = 0
        for node in nodes:
            if node.job not in (None, job):
                ready = max(ready, node.begun + step.background)
                wait = max(wait, step.foreground)
        for node in nodes:
            node.job, node.begun = job, ready + wait
        self.starts.append((granted, job, at))
        yield self.env.timeout(ready + wait + step.seconds - granted)
        for node in nodes:
            node.line.remove(token)
            node.at += 1
        self.start(nodes)
        yield self.env.timeout(step.lag)
        over.succeed()

    def start(self, nodes):
        """Wake whoever is first on all its nodes."""
        for node in nodes:
            if self.mode == "strict":
                self.front(node)
            if node.line:
                first = node.line[0]
                ready = all(self.is_first(other, first) for other in first.nodes)
                if ready and not first.go.triggered:
                    first.go.succeed()

    def front(self, node):
        """Strict: bring the visit whose turn it is to the front of the line."""
        key = self.expected(node)
        for token in node.line:
            if token.key == key:
                node.line.remove(token)
                node.line.insert(0, token)
                return

    def expected(self, node):
        while True:
            round_, place = divmod(node.at, len(node.expected))
            visit = node.expected[place]
            if round_ >= visit.lag:
                return visit.job, visit.step
            node.at += 1

    def is_first(self, node, token):
        if self.mode == "strict" and self.expected(node) != token.key:
            return False
        if self.mode == "strict":
            self.front(node)
        return node.line[0] is token
