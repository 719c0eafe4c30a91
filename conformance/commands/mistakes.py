"""goldformer mistakes: the catalogue, and the proof that the suite catches what stands in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.progress import track
from rich.text import Text

from goldformer.conformance.commands.console import (
    FAILS,
    OK,
    err,
    no_folder,
    plain_table,
    print_table,
    save,
    save_json,
    say,
    unusable,
    words,
)
from goldformer.conformance.diagnosis.kill import Kill, KillMatrix, build_kill_matrix, collect_kills
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.conformance.reports.text import number
from goldformer.spec import ROOT, Mistake, Spec, SpecError, load_spec
from goldformer.spec.goldenfile import golden_path, write_kills
from goldformer.spec.readme import folded

#: The dtype whose kills are written: coarser ones hide mistakes, and in a finer one more fails than most people see.
WRITTEN: Final = "float32"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `goldformer mistakes`."""

    ids: tuple[str, ...]
    component: tuple[str, ...]
    matrix: bool
    write: bool
    dtype: str
    jobs: int | None
    json: Path | None
    html: Path | None
    root: Path | None


def run(options: Options) -> int:
    """Print the catalogue, or measure and judge it; the exit status."""
    try:
        spec = load_spec((options.root or ROOT).resolve())
    except SpecError as error:
        return unusable(str(error))
    ids, components = words(options.ids), words(options.component)
    message = unknown(ids, spec.mistakes, "no such mistake") or unknown(components, spec.components, "--component")
    if message := message or _misused(options):
        return unusable(message)
    chosen = [
        m for m in spec.mistakes.values() if (not ids or m.id in ids) and (not components or m.component in components)
    ]
    if not chosen:
        return unusable(f"none of these mistakes is in {', '.join(components)}")
    return _matrix(spec, chosen, options) if options.matrix else _catalogue(chosen)


def _misused(options: Options) -> str | None:
    """Return what to say of options that need others, or of a folder that does not exist; None if all is well."""
    saved = {"--json": options.json, "--html": options.html}
    for option, path in saved.items():
        if path is not None and not options.matrix:
            return f"{option} saves the kill matrix: say --matrix too"
    if options.write and not options.matrix:
        return "--write writes what the kill matrix measures: say --matrix too"
    if options.write and options.dtype != WRITTEN:
        return f"--write writes what the kill matrix measures in {WRITTEN}, not in {options.dtype}: leave out --dtype"
    return no_folder(saved)


def _catalogue(chosen: Sequence[Mistake]) -> int:
    table = plain_table("mistake", "component", "title")
    for mistake in chosen:
        # As a Text, since brackets in a title are no markup.
        table.add_row(mistake.id, mistake.component, Text(mistake.title))
    print_table(table)
    return OK


# ── the kill matrix ──


def _matrix(spec: Spec, chosen: Sequence[Mistake], options: Options) -> int:
    matrix = build_kill_matrix(spec, chosen, options.dtype, options.jobs or os.cpu_count() or 1, _shown)
    if not matrix.kills:
        return unusable(f"nothing to measure: nobody makes {', '.join(m.id for m in matrix.not_made)}")
    _print(matrix, spec)
    if options.write:
        _write(matrix, spec)
    if options.json:
        save_json(options.json, _as_json(matrix))
    if options.html:
        from goldformer.conformance.reports.kill_page import page  # Jinja2, which no other command needs

        save(options.html, page(matrix, spec))
    return OK if matrix.is_proven else FAILS


def _write(matrix: KillMatrix, spec: Spec) -> None:
    """Write the kills that were measured into the golden files."""
    kills = collect_kills(matrix.kills, spec)
    more = sum(len({*kills[id_]} - {*spec.cases[id_].kills}) for id_ in kills)
    fewer = sum(len({*spec.cases[id_].kills} - {*kills[id_]}) for id_ in kills)
    say(f"- kills written: {more} more, {fewer} fewer")
    for component in spec.components:
        cases = [case.id for case in spec.cases_of(component)]
        path = golden_path(spec.root / "cases" / f"{component}.yaml")
        if write_kills(path, component, cases, {id_: kills[id_] for id_ in cases if id_ in kills}):
            say(f"- wrote {path}")


def _shown(kills: Iterator[Kill], total: int) -> Iterable[Kill]:
    """The same under a progress bar, where there is a terminal to draw it on."""
    return track(kills, "measuring", total=total, console=err, transient=True, disable=not err.is_terminal)


def _print(matrix: KillMatrix, spec: Spec) -> None:
    table = plain_table("mistake", "component", "caught by", "margin", "cases", right=("caught by", "margin"))
    for kill in matrix.kills:
        caught = f"{len(kill.by)} of {len(kill.claims)}"
        names = folded([cell.check for cell in kill.by]) or "nothing"
        sound = kill.is_caught and not kill.false_claims
        table.add_row(
            kill.mistake.id, kill.mistake.component, caught, number(kill.margin), names, style=None if sound else "red"
        )
    print_table(table)
    say("")
    for line in _findings(matrix, spec):
        say(line)


def _findings(matrix: KillMatrix, spec: Spec) -> Iterator[str]:
    """What the matrix says as a whole, in lines."""
    caught = len(matrix.kills) - len(matrix.not_caught)
    least = f", the least margin is {number(matrix.least.margin)} ({matrix.least.mistake.id})" if matrix.least else ""
    yield f"- {caught} of {len(matrix.kills)} mistakes are caught in {matrix.dtype}{least}"
    elsewhere = [f"{kill.mistake.id} in {kill.dtype}" for kill in matrix.kills if kill.dtype != matrix.dtype]
    if elsewhere:
        yield f"- measured in another dtype, as they are none in {matrix.dtype}: {', '.join(elsewhere)}"
    yield f"- {_counted('not caught', len(matrix.not_caught))}"
    for kill in matrix.not_caught:
        why = "no check that lists it fails" if kill.claims else "no check that can be judged lists it"
        yield f"  - {kill.mistake.id}: {why}"
    yield f"- {_counted('untrue claims', len(matrix.false_claims))}"
    for kill, cell in matrix.false_claims:
        yield f"  - {cell.check} lists {kill.mistake.id} and passes in {kill.dtype}, margin {number(cell.margin)}"
    killers = sum(map(len, matrix.redundant.values()))
    yield f"- {_counted('cases that kill nothing which no other case of their component kills', killers)}"
    for component, ids in matrix.redundant.items():
        yield f"  - {component}, {len(ids)} of {len(spec.cases_of(component))}: {folded(ids)}"
    if matrix.not_made:
        yield f"- nobody makes {len(matrix.not_made)}: {', '.join(m.id for m in matrix.not_made)}"
    yield f"- {sum(len(kill.cells) for kill in matrix.kills)} checks in {matrix.seconds:.1f} s"


def _counted(what: str, count: int) -> str:
    return f"{what}: {count or 'none'}"


def _as_json(matrix: KillMatrix) -> dict[str, Any]:
    return {
        "dtype": matrix.dtype,
        "seconds": matrix.seconds,
        "proven": matrix.is_proven,
        "mistakes": [
            {
                "mistake": kill.mistake.id, "component": kill.mistake.component, "title": kill.mistake.title,
                "dtype": kill.dtype, "caught": kill.is_caught, "margin": kill.margin,
                "untrue": [cell.check for cell in kill.false_claims],
                "unclaimed": [cell.check for cell in kill.surprises],
                "unmeasured": list(kill.unmeasured),
                "cells": [asdict(cell) for cell in kill.cells],
            }
            for kill in matrix.kills
        ],
        "not_caught": [kill.mistake.id for kill in matrix.not_caught],
        "redundant": {component: list(ids) for component, ids in matrix.redundant.items()},
        "not_made": [mistake.id for mistake in matrix.not_made],
    }  # fmt: skip
