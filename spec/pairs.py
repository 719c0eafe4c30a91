"""Pairwise covering arrays: a few combinations of options that show every pair of options together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations


def cover_pairs(rows: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    """Return the places of some rows, in order, that show every pair of values which any row shows; the first is one.

    Each further row is the one that shows most new pairs. Rows of at most two columns are all chosen.
    """
    return _cover(tuple(rows))


@cache
def _cover(rows: tuple[tuple[str, ...], ...]) -> tuple[int, ...]:
    # Each pair is one bit of an integer: the search compares thousands of rows, and sets take three times as long.
    bits: dict[tuple[int, str, int, str], int] = {}
    pairs = [sum(bits.setdefault(pair, 1 << len(bits)) for pair in _list_pairs(row)) for row in rows]
    left = (1 << len(bits)) - 1
    if not left:  # at most one column, without pairs
        return tuple(range(len(rows)))
    chosen = [0]
    left &= ~pairs[0]
    while left:
        best = max(range(len(rows)), key=lambda place: (pairs[place] & left).bit_count())
        chosen.append(best)
        left &= ~pairs[best]
    return tuple(sorted(chosen))


def _list_pairs(row: tuple[str, ...]) -> Iterator[tuple[int, str, int, str]]:
    for (one, first), (other, second) in combinations(enumerate(row), 2):
        yield one, first, other, second
