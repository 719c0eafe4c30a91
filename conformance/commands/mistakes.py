"""goldformer mistakes: the catalogue, and the proof that the suite catches every mistake in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    CannotRun,
    expand_patterns,
    plain_table,
    print_table,
    require_folders,
    require_known,
    save_json,
    say,
    show_progress,
)
from goldformer.conformance.commands._kill import KillMatrix, build_kill_matrix, collect_kills
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import ROOT, Mistake, Spec, load_spec
from goldformer.spec.goldenfile import golden_path, write_kills
from goldformer.spec.readme import join_first

#: The dtype whose kills are written: coarser ones hide mistakes, and in a finer one more fails than most people see.
WRITTEN: Final = "float32"


@click.command(epilog=options.list_statuses(fails="a mistake is not caught, or a claim is untrue"))
@click.argument("ids", metavar="[ID]…", nargs=-1, callback=options.split_words())
@options.COMPONENTS
@click.option("--matrix", is_flag=True, help="Make each mistake, run the cases that could show it, and judge them.")
@click.option("--write", is_flag=True, help="Write into spec/golden which of its mistakes each case kills.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "float16"]),
    default=WRITTEN,
    show_default=True,
    help="The dtype to make them in; a mistake that shows only in another one is made in that.",
)
@options.JOBS
@options.JSON
@options.SPEC
def mistakes(
    *,
    ids: tuple[str, ...],
    components: tuple[str, ...],
    matrix: bool,
    write: bool,
    dtype: str,
    jobs: int | None,
    json: Path | None,
    root: Path | None,
) -> int:
    """List the known mistakes, or prove that the suite catches them.

    With --matrix, each mistake is made and the cases are run on it. The margin is the factor by which the error of code
    with the mistake exceeds the tolerance. Exit status 1 means that a mistake is not caught, or that a case lists one
    and passes.
    """
    spec = load_spec((root or ROOT).resolve())
    require_known(ids, spec.mistakes, "no such mistake")
    components = expand_patterns(components, spec.components, "--component")
    if json is not None and not matrix:
        raise CannotRun("--json saves the kill matrix: add --matrix")
    if write and not matrix:
        raise CannotRun("--write writes what the kill matrix measures: add --matrix")
    if write and dtype != WRITTEN:
        raise CannotRun(f"--write writes what the kill matrix measures in {WRITTEN}, not in {dtype}: leave out --dtype")
    require_folders({"--json": json})
    chosen = [
        m for m in spec.mistakes.values() if (not ids or m.id in ids) and (not components or m.component in components)
    ]
    if not chosen:
        raise CannotRun(f"no such mistake is in {', '.join(components)}")
    if not matrix:
        return _print_catalogue(chosen)
    watch = partial(show_progress, what="measuring")
    measured = build_kill_matrix(spec, chosen, dtype, jobs or os.cpu_count() or 1, watch)
    if not measured.kills:
        raise CannotRun(f"nothing to measure: no code makes {', '.join(m.id for m in measured.not_made)}")
    _print_matrix(measured, spec)
    if write:
        _write_kills(measured, spec)
    if json:
        save_json(json, _as_json(measured))
    return OK if measured.is_proven else FAILS


def _print_catalogue(chosen: Sequence[Mistake]) -> int:
    table = plain_table("mistake", "component", "title")
    for mistake in chosen:
        table.add_row(mistake.id, mistake.component, mistake.title)
    print_table(table)
    return OK


# ── the kill matrix ──


def _write_kills(matrix: KillMatrix, spec: Spec) -> None:
    """Write the kills that were measured into the golden files."""
    kills = collect_kills(matrix.kills, spec)
    more = sum(len({*kills[id_]} - {*spec.cases[id_].kills}) for id_ in kills)
    fewer = sum(len({*spec.cases[id_].kills} - {*kills[id_]}) for id_ in kills)
    say(f"- kills written: {more} more, {fewer} fewer")
    for component in spec.components:
        cases = [case.id for case in spec.cases_of(component)]
        path = golden_path(spec.root / "cases" / f"{component}.yaml")
        edition = spec.edition_of(component)
        if write_kills(path, edition, component, cases, {id_: kills[id_] for id_ in cases if id_ in kills}):
            say(f"- wrote {path}")


def _print_matrix(matrix: KillMatrix, spec: Spec) -> None:
    table = plain_table("mistake", "component", "caught by", "margin", "cases", right=("caught by", "margin"))
    for kill in matrix.kills:
        caught = f"{len(kill.by)} of {len(kill.claims)}"
        names = join_first([cell.check for cell in kill.by]) or "nothing"
        sound = kill.is_caught and not kill.false_claims
        table.add_row(
            kill.mistake.id,
            kill.mistake.component,
            caught,
            format_ratio(kill.margin),
            names,
            style=None if sound else "red",
        )
    print_table(table)
    say("")
    for line in _list_findings(matrix, spec):
        say(line)


def _list_findings(matrix: KillMatrix, spec: Spec) -> Iterator[str]:
    """Yield the results of the whole matrix, in lines."""
    caught = len(matrix.kills) - len(matrix.not_caught)
    least = (
        f", the least margin is {format_ratio(matrix.least.margin)} ({matrix.least.mistake.id})" if matrix.least else ""
    )
    yield f"- {caught} of {len(matrix.kills)} mistakes are caught in {matrix.dtype}{least}"
    elsewhere = [f"{kill.mistake.id} in {kill.dtype}" for kill in matrix.kills if kill.dtype != matrix.dtype]
    if elsewhere:
        yield f"- measured in another dtype, as they do not show in {matrix.dtype}: {', '.join(elsewhere)}"
    yield f"- {_format_count('not caught', len(matrix.not_caught))}"
    for kill in matrix.not_caught:
        why = "no check that lists it fails" if kill.claims else "no check that can be judged lists it"
        yield f"  - {kill.mistake.id}: {why}"
    yield f"- {_format_count('untrue claims', len(matrix.false_claims))}"
    for kill, cell in matrix.false_claims:
        yield f"  - {cell.check} lists {kill.mistake.id} and passes in {kill.dtype}, margin {format_ratio(cell.margin)}"
    killers = sum(map(len, matrix.redundant.values()))
    yield f"- {_format_count('cases whose kills other cases of their component all make too', killers)}"
    for component, ids in matrix.redundant.items():
        yield f"  - {component}, {len(ids)} of {len(spec.cases_of(component))}: {join_first(ids)}"
    if matrix.not_made:
        yield f"- no code makes {len(matrix.not_made)}: {', '.join(m.id for m in matrix.not_made)}"
    yield f"- {sum(len(kill.cells) for kill in matrix.kills)} checks in {matrix.seconds:.1f} s"


def _format_count(what: str, count: int) -> str:
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
