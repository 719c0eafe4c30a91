"""The drawing of the rooms of the project: which folder imports which, as the imports are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Final

import grimp

_PACKAGE: Final = "goldformer"
#: The room that has rooms of its own, which are drawn instead of it.
_HOUSE: Final = "conformance"
_PAGE: Final = Path(__file__).parents[2] / "extend.md"
#: The lines around the drawing in the page.
_BEGIN, _END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->\n"

Imports = Mapping[str, frozenset[str]]


def draw_rooms() -> str:
    """Draw the rooms as text, one a line, each after those that import it, with an arrow to those it imports.

    A room that can be reached through another one is left out.
    """
    rooms = _read_imports()
    reached = {room: _find_reached(room, rooms) for room in rooms}
    # A room reaches all that those below it reach, and one more.
    order = sorted(rooms, key=lambda room: (-len(reached[room]), room))
    width = max(map(len, rooms))
    return "".join(f"{room:{width}}{_write_arrow(rooms[room], reached)}".rstrip() + "\n" for room in order)


def insert_drawing(text: str) -> str:
    """Return the text of the page with the drawing between its two markers."""
    before, _, rest = text.partition(_BEGIN)
    # Indented, it is text: the blocks of a page with a language are run.
    return f"{before}{_BEGIN}\n{indent(draw_rooms(), '    ')}\n{_END}{rest.partition(_END)[2]}"


def _read_imports() -> Imports:
    """Return for each room those that its modules import; single modules belong to none."""
    graph = grimp.build_graph(_PACKAGE, cache_dir=None)
    top = graph.find_children(_PACKAGE) - {f"{_PACKAGE}.{_HOUSE}"}
    packages = [m for m in top | graph.find_children(f"{_PACKAGE}.{_HOUSE}") if graph.find_children(m)]
    modules = {package: {package, *graph.find_descendants(package)} for package in packages}
    found = {
        package: {imported for module in mine for imported in graph.find_modules_directly_imported_by(module)}
        for package, mine in modules.items()
    }
    return {
        _write_name(package): frozenset(
            _write_name(other) for other in packages if other != package and found[package] & modules[other]
        )
        for package in packages
    }


def _write_name(package: str) -> str:
    return f"{package.removeprefix(f'{_PACKAGE}.').replace('.', '/')}/"


def _find_reached(room: str, rooms: Imports) -> frozenset[str]:
    return rooms[room].union(*(_find_reached(other, rooms) for other in rooms[room]))


def _write_arrow(imported: frozenset[str], reached: Imports) -> str:
    direct = sorted(room for room in imported if not any(room in reached[other] for other in imported))
    return f"  ──▶  {', '.join(direct)}" if direct else ""


if __name__ == "__main__":
    _PAGE.write_text(insert_drawing(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
