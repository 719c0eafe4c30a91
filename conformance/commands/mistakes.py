"""goldformer mistakes: the catalogue, and the proof that the suite catches every mistake in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    CannotRun,
    expand_patterns,
    plain_table,
    print_table,
    require_known,
    say,
    show_progress,
)
from goldformer.conformance.commands._kill import Kill, collect_kills, measure_all
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import ROOT, Mistake, Spec, load_spec
from goldformer.spec.goldenfile import golden_path, write_kills
from goldformer.spec.making.readme import join_first

#: The dtype in which mistakes are made: coarser ones hide them, and in a finer one more fails than most people see.
DTYPE: Final = "float32"


@click.command(epilog=options.list_statuses(fails="a mistake is not caught, or a claim is untrue"))
@click.argument("ids", metavar="[ID]…", nargs=-1, callback=options.split_words())
@options.COMPONENTS
@click.option("--matrix", is_flag=True, help="Make each mistake, run the cases that could show it, and judge them.")
@click.option("--write", is_flag=True, help="Write into spec/golden which of its mistakes each case kills.")
@options.JOBS
@options.SPEC
def mistakes(
    *, ids: tuple[str, ...], components: tuple[str, ...], matrix: bool, write: bool, jobs: int | None, root: Path | None
) -> int:
    """List the known mistakes, or prove that the suite catches them.

    With --matrix, each mistake is made in float32, or in a dtype in which it shows, and the cases are run on it. The
    margin is the factor by which the error of code with the mistake exceeds the tolerance. Exit status 1 means that a
    mistake is not caught, or that a case lists one and passes.
    """
    spec = load_spec((root or ROOT).resolve())
    require_known(ids, spec.mistakes, "no such mistake")
    components = expand_patterns(components, spec.components, "--component")
    if write and not matrix:
        raise CannotRun("--write writes what the kill matrix measures: add --matrix")
    chosen = [
        m for m in spec.mistakes.values() if (not ids or m.id in ids) and (not components or m.component in components)
    ]
    if not chosen:
        raise CannotRun(f"no such mistake is in {', '.join(components)}")
    if not matrix:
        return _print_catalogue(chosen)
    measured = measure_all(spec, [mistake.id for mistake in chosen], DTYPE, jobs or os.cpu_count() or 1)
    kills = [*show_progress(measured, len(chosen), "measuring")]
    _print_matrix(kills)
    if write:
        _write_kills(kills, spec)
    return OK if all(kill.is_caught and not kill.false_claims for kill in kills) else FAILS


def _print_catalogue(chosen: Sequence[Mistake]) -> int:
    table = plain_table("mistake", "component", "title")
    for mistake in chosen:
        table.add_row(mistake.id, mistake.component, mistake.title)
    print_table(table)
    return OK


def _write_kills(measured: Iterable[Kill], spec: Spec) -> None:
    """Write the kills that were measured into the golden files."""
    kills = collect_kills(measured, spec)
    more = sum(len({*kills[id_]} - {*spec.cases[id_].kills}) for id_ in kills)
    fewer = sum(len({*spec.cases[id_].kills} - {*kills[id_]}) for id_ in kills)
    say(f"- kills written: {more} more, {fewer} fewer")
    for component in spec.components:
        cases = [case.id for case in spec.cases_of(component)]
        path = golden_path(spec.root / "cases" / f"{component}.yaml")
        edition = spec.edition_of(component)
        if write_kills(path, edition, component, cases, {id_: kills[id_] for id_ in cases if id_ in kills}):
            say(f"- wrote {path}")


def _print_matrix(kills: Sequence[Kill]) -> None:
    table = plain_table("mistake", "component", "caught by", "margin", "cases", right=("caught by", "margin"))
    for kill in kills:
        caught = f"{len(kill.by)} of {len(kill.claims)}"
        names = join_first([cell.check for cell in kill.by]) or "nothing"
        style = None if kill.is_caught and not kill.false_claims else "red"
        margin = format_ratio(kill.margin)
        table.add_row(kill.mistake.id, kill.mistake.component, caught, margin, names, style=style)
    print_table(table)
    say("")
    for line in _list_findings(kills):
        say(line)


def _list_findings(kills: Sequence[Kill]) -> Iterator[str]:
    """Yield the results of the whole matrix, in lines."""
    missed = [kill for kill in kills if not kill.is_caught]
    least = min((kill for kill in kills if kill.is_caught), key=lambda kill: kill.margin, default=None)
    margin = f", the least margin is {format_ratio(least.margin)} ({least.mistake.id})" if least else ""
    yield f"- {len(kills) - len(missed)} of {len(kills)} mistakes are caught in {DTYPE}{margin}"
    if elsewhere := [f"{kill.mistake.id} in {kill.dtype}" for kill in kills if kill.dtype != DTYPE]:
        yield f"- measured in another dtype, as they do not show in {DTYPE}: {', '.join(elsewhere)}"
    for kill in missed:
        why = "no check that lists it fails" if kill.claims else "no check that can be judged lists it"
        yield f"- not caught: {kill.mistake.id}: {why}"
    for kill in kills:
        for cell in kill.false_claims:
            passes = f"passes in {kill.dtype}, margin {format_ratio(cell.margin)}"
            yield f"- untrue: {cell.check} lists {kill.mistake.id} and {passes}"
