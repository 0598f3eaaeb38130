"""A pattern that tells every word of a buffer from every other, at any time, and is cheap.

Word i is ``(i * odd) xor key`` modulo 2^64: the multiplication sends different positions to
different words, the key (a hash of who wrote it and when) separates buffers and iterations. So a
lost, stale, moved or foreign word is noticed. Works in pieces that stay in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["WORD_BYTES", "find_wrong", "pattern_key", "pieces", "renew", "write"]

WORD_BYTES = 8
_PIECE_WORDS = 1 << 16
_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_STEPS = np.arange(_PIECE_WORDS, dtype=np.uint64) * np.uint64(_ODD)

Words = npt.NDArray[np.uint64]


def pattern_key(*parts: str | int) -> int:
    """64 bits from who wrote a buffer and when."""
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def write(view: memoryview, key: int) -> None:
    """Fill a buffer. pre: its size is a multiple of WORD_BYTES."""
    words = np.frombuffer(view, dtype=np.uint64)
    for start in range(0, len(words), _PIECE_WORDS):
        piece = words[start : start + _PIECE_WORDS]
        np.copyto(piece, _expected(start, len(piece), key))


def renew(view: memoryview, key: int, next_key: int) -> int | None:
    """Check a buffer against ``key``, and fill it with ``next_key``'s pattern.

    Returns the offset in bytes of the first wrong byte, None if all are right; from the piece with
    a wrong byte on, the buffer is left as it is.
    """
    return _check(view, key, next_key)


def find_wrong(view: memoryview, key: int) -> int | None:
    """The offset in bytes of the first byte that is not ``key``'s pattern, None if all are."""
    return _check(view, key, None)


def _check(view: memoryview, key: int, next_key: int | None) -> int | None:
    words = np.frombuffer(view, dtype=np.uint64)
    for start in range(0, len(words), _PIECE_WORDS):
        piece = words[start : start + _PIECE_WORDS]
        expected = _expected(start, len(piece), key)
        if not np.array_equal(piece, expected):
            return start * WORD_BYTES + _first_difference(piece, expected)
        if next_key is not None:
            np.copyto(piece, _expected(start, len(piece), next_key))
    return None


def pieces(nbytes: int, key: int) -> Iterator[tuple[int, memoryview]]:
    """The pattern of a whole buffer: offsets, and the bytes that stand there.
    pre: nbytes is a multiple of WORD_BYTES."""
    for start in range(0, nbytes // WORD_BYTES, _PIECE_WORDS):
        words = _expected(start, min(_PIECE_WORDS, nbytes // WORD_BYTES - start), key)
        yield start * WORD_BYTES, words.data.cast("B")


def _first_difference(piece: Words, expected: Words) -> int:
    return int(np.flatnonzero(piece.view(np.uint8) != expected.view(np.uint8))[0])


def _expected(start: int, count: int, key: int) -> Words:
    words: Words = _STEPS[:count] + np.uint64(start * _ODD & _MASK)
    words ^= np.uint64(key)
    return words
