"""Questions and verifiable rewards, from the data sets of the reasoning-gym package.

A prompt is the question without the words that all questions of the data set share: in
``Spell this word backward (example: sun -> nus): bread`` only ``bread`` differs from question to
question, and a model trained from nothing on this one task gains nothing from reading the rest a
thousand times. Answers are graded by the data set's own ``score_answer``, partial credit included.
"""

from __future__ import annotations

import importlib
import itertools
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weave_rt.errors import UsageError
from weave_scheduler.jobs.grpo.tokenizer import CharTokenizer

__all__ = ["Question", "Task", "shared_words"]

_IMPORT_LOCK = threading.Lock()  # importing the package takes seconds, and jobs are threads


@dataclass(frozen=True, slots=True)
class Question:
    """One question: the prompt as read by the model, and the data set's entry to grade with."""

    prompt: str
    entry: Mapping[str, Any]


class Task:
    """A fixed set of questions, made from ``seed`` once, and the verifier that grades answers.

    Questions are kept by the length of their prompts: a batch has one length and needs no padding.
    """

    def __init__(self, name: str, options: Mapping[str, Any], size: int, seed: int) -> None:
        self._dataset = _create_dataset(name, options, size, seed)
        entries = _entries(self._dataset, name, size)
        head, tail = shared_words([entry["question"] for entry in entries])
        self.questions = [
            Question(entry["question"][head : len(entry["question"]) - tail], entry)
            for entry in entries
        ]
        texts = [text for q in self.questions for text in (q.prompt, str(q.entry["answer"]))]
        self.tokenizer = CharTokenizer(texts)
        self._by_length: dict[int, list[Question]] = {}
        for question in self.questions:
            self._by_length.setdefault(len(question.prompt), []).append(question)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt, the ask mark included."""
        return max(self._by_length) + 1

    def draw(self, rng: random.Random, count: int) -> list[Question]:
        """``count`` questions of one length; lengths are as likely as they are frequent."""
        length = len(rng.choice(self.questions).prompt)
        return rng.choices(self._by_length[length], k=count)

    def grade(self, question: Question, answer: str) -> float:
        """The verifier's reward for ``answer``, between 0 and 1; 1 is a right answer."""
        return float(self._dataset.score_answer(answer, question.entry))


def shared_words(texts: Sequence[str]) -> tuple[int, int]:
    """How many characters at the beginning and at the end all texts share, in whole words."""
    head = _shared_prefix(texts)
    tail = _shared_prefix([text[::-1] for text in texts])
    shortest = min(texts, key=len)
    while head > 0 and not shortest[head - 1].isspace():
        head -= 1
    while tail > 0 and shortest[-tail].isalnum():
        tail -= 1
    return head, max(0, min(tail, len(shortest) - head - 1))


def _shared_prefix(texts: Sequence[str]) -> int:
    """Length of the prefix that all texts share: that of the first and the last in their order."""
    pairs = zip(min(texts), max(texts), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _create_dataset(name: str, options: Mapping[str, Any], size: int, seed: int) -> Any:
    """A reasoning-gym data set; its errors about name and options become one line."""
    with _IMPORT_LOCK:
        try:
            gym = importlib.import_module("reasoning_gym")
        except ImportError as error:
            raise UsageError(
                "kind: grpo needs the reasoning-gym package; pip install reasoning-gym"
            ) from error
    try:
        return gym.create_dataset(name, **options, size=size, seed=seed)
    except Exception as error:  # it is a package of many hands
        raise UsageError(f"grpo config: task {name!r}: {_said(error)}") from error


def _entries(dataset: Any, name: str, size: int) -> list[Mapping[str, Any]]:
    """All of the data set; options that leave it nothing to choose from are found only here."""
    try:
        return [dataset[i] for i in range(size)]
    except Exception as error:
        raise UsageError(
            f"grpo config: task {name!r} makes no questions with these task_options: {_said(error)}"
        ) from error


def _said(error: Exception) -> str:
    named = isinstance(error, AssertionError | TypeError | ValueError) and str(error)
    return str(error) if named else f"{type(error).__name__}: {error}"
