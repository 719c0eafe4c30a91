"""The parameters of the parts of a component: their names have those of the parts before them, and dots between."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

Entry = TypeVar("Entry")


def part(params: Mapping[str, Entry], name: str) -> dict[str, Entry]:
    """Return the parameters of one part of a component, by their names within it.

    `part(params, "encoder.0")` has self_attention.w_q and so on; `part` of that and "self_attention" has w_q.
    """
    return {short: params[full] for full, short in _list_part(tuple(params), name)}


@lru_cache(maxsize=1 << 12)
def _list_part(names: tuple[str, ...], part_name: str) -> tuple[tuple[str, str], ...]:
    """Return the names of a part's parameters, in the whole and in the part; a model asks for the same ones often."""
    start = f"{part_name}."
    return tuple((full, full.removeprefix(start)) for full in names if full.startswith(start))
