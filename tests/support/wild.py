"""Programs in the styles that people write, each with its adapter and with mistakes to put in.

Tests judge those of tests/wild; `make diagnosis` also runs those of benchmarks/programs. A file begins with the
verdict that it deserves and, if it has more to declare, with what it declares:

    # deserves: correct                                or: # deserves: variant convention=option, mistake-id, …
    # declares: biases=none, layer_norm_eps=1e-6

It ends with MISTAKES. Each has a name, old text, new text, a sentence, and `ids`: what the diagnosis may call it, as
ids of spec/mistakes.yaml, options ("norm_placement: pre") or ids of edits; () if none of these is true of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
#: The programs that tests judge, and those that only the bench runs.
TESTED, BENCHED = _ROOT / "tests" / "wild", _ROOT / "benchmarks" / "programs"
_DESERVES = "# deserves: "
_DECLARES = "# declares: "
_ADAPTER = "\n# The adapter."
_MISTAKES = "\nMISTAKES = "


@dataclass(frozen=True)
class Mistake:
    """A change of an implementation's text that makes it wrong."""

    old: str
    new: str
    sentence: str
    #: What the diagnosis may call it; empty if the catalogue has nothing that is true of it.
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Wild:
    """An implementation of the bench."""

    name: str
    path: Path
    #: The code and its adapter, without MISTAKES.
    source: str
    #: By convention; empty for an implementation that is correct as it is.
    variant: dict[str, str]
    #: The mistakes of the catalogue that its author made on purpose.
    on_purpose: tuple[str, ...]
    #: By convention, what the declared run declares besides CONVENTIONS of the file.
    declares: dict[str, str]
    mistakes: dict[str, Mistake]

    @property
    def is_correct(self) -> bool:
        """Return True if it does what the documents say under all default options."""
        return not (self.variant or self.on_purpose)

    @cached_property
    def adapter_lines(self) -> int:
        """The number of lines of its adapter that are not empty."""
        assert self.source.count(_ADAPTER) == 1, f"{self.path.name}: write one line that begins with {_ADAPTER!r}"
        return sum(bool(line.strip()) for line in self.source.partition(_ADAPTER)[2].splitlines()[1:])

    def apply_mistake(self, name: str) -> str:
        """Return the source with a mistake."""
        mistake = self.mistakes[name]
        assert self.source.count(mistake.old) == 1, f"{self.path.name}: {name}: its old text is not there once"
        return self.source.replace(mistake.old, mistake.new)


def read_bench(names: Iterable[str] = ()) -> list[Wild]:
    """Read every implementation, or those of some names."""
    paths = {path.stem: path for folder in (TESTED, BENCHED) for path in sorted(folder.glob("*.py"))}
    if unknown := [name for name in names if name not in paths]:
        raise ValueError(f"no implementation {unknown[0]!r}; there are {', '.join(sorted(paths))}")
    return [_read(paths[name]) for name in (names or paths)]


def _read(path: Path) -> Wild:
    text = path.read_text(encoding="utf-8")
    header, second, *_ = text.splitlines()
    assert header.startswith(_DESERVES), f"{path.name} begins with {header!r}: begin with {_DESERVES!r}"
    source, found, mistakes = text.partition(_MISTAKES)
    assert found, f"{path.name} has no MISTAKES"
    kind, _, entries = header.removeprefix(_DESERVES).partition(" ")
    assert kind in ("correct", "variant"), f"{path.name} deserves {kind!r}: write correct or variant"
    assert bool(entries) == (kind == "variant"), f"{path.name}: a variant, and only a variant, says what it varies"
    listed = entries.split(", ") if entries else []
    variant = _read_options(entry for entry in listed if "=" in entry)
    more = second.removeprefix(_DECLARES).split(", ") if second.startswith(_DECLARES) else []
    return Wild(
        name=path.stem,
        path=path,
        source=source,
        variant=variant,
        on_purpose=tuple(entry for entry in listed if "=" not in entry),
        declares=variant | _read_options(more),
        mistakes={name: Mistake(*entry) for name, entry in ast.literal_eval(mistakes.strip()).items()},
    )


def _read_options(entries: Iterable[str]) -> dict[str, str]:
    return dict(entry.split("=") for entry in entries)


def load_adapter(name: str, source: str, folder: Path, spec: Any) -> Any:
    """Write the source of an implementation and return its adapter; no module of it stays behind."""
    from goldformer.adapters import find_adapter
    from goldformer.adapters.imports import forget_modules

    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    with forget_modules(folder):
        return find_adapter(str(path), spec)


def make_bench(name: str, mistake: str, folder: Path, spec: Any) -> Any:
    """Write an implementation with a mistake and return its bench in float32, with nothing more declared."""
    from goldformer.conformance.judging.cases import Bench

    (wild,) = read_bench([name])
    return Bench(spec, load_adapter(name, wild.apply_mistake(mistake), folder, spec), "float32", "cpu")


def split_declaration(declared: dict[str, str], spec: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options that the spec has, and those that it has not."""
    known = {
        name: option
        for name, option in declared.items()
        if name in spec.conventions and (option in spec.conventions[name].options or option == "unspecified")
    }
    return known, {name: option for name, option in declared.items() if name not in known}
