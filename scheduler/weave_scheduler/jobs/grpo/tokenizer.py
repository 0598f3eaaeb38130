"""Characters to token ids and back.

The vocabulary is the sorted set of characters of a task's questions and answers, after two marks of
our own: one stands between question and answer, the other ends an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["CharTokenizer"]


class CharTokenizer:
    """One id per character. Ids depend only on the set of characters, not on their order."""

    END = 0
    """Ends an answer."""
    ASK = 1
    """Ends a question; the answer begins after it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.characters: tuple[str, ...] = tuple(sorted(set().union(*texts)))
        self._ids = {c: i for i, c in enumerate(self.characters, start=2)}

    def __len__(self) -> int:
        """Size of the vocabulary, the two marks included."""
        return len(self.characters) + 2

    def encode_question(self, text: str) -> list[int]:
        """Ids of ``text`` followed by the mark that asks for an answer."""
        return [*(self._ids[c] for c in text), self.ASK]

    def decode_answer(self, ids: Sequence[int]) -> str:
        """Text up to the first end mark; a stray ask mark reads as U+FFFD, which no answer has."""
        text = []
        for i in ids:
            if i == self.END:
                break
            text.append("\N{REPLACEMENT CHARACTER}" if i == self.ASK else self.characters[i - 2])
        return "".join(text)
