"""goldformer lint: the spec against itself."""

from __future__ import annotations

from pathlib import Path

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, say
from goldformer.spec import ROOT, load_spec
from goldformer.spec.making import promises
from goldformer.spec.making.lint import lint as find_problems


@click.command(epilog=options.list_statuses(fails="the spec contradicts itself"))
@click.option("--record-ids", is_flag=True, help="Add all ids to spec/ids.json: a release promises them.")
@options.SPEC
def lint(*, record_ids: bool, root: Path | None) -> int:
    """Check the spec against itself.

    It looks for gaps of coverage in both directions, wrong printed digits, errata, sizes, blind cases, a digest that is
    out of date, and ids that a release has promised and that are gone.
    """
    spec = load_spec((root or ROOT).resolve(), whole=True)
    if record_ids and promises.record_ids(spec):
        say(f"wrote {promises.locate_ids(spec.root)}")
    problems = [*find_problems(spec), *promises.list_stale_stamps(spec), *promises.list_broken_promises(spec)]
    for problem in problems:
        say(str(problem))
    derived = sum(case.golden is not None for case in spec.cases.values())
    refused = sum(case.error is not None for case in spec.cases.values())
    editions = " and ".join(f"{edition.edition}/{edition.version}" for edition in spec.editions.values())
    say(
        f"{len(spec.clauses)} clauses, {len(spec.cases)} cases ({derived} with golden values, {refused} refusals), "
        f"{len(spec.properties)} properties, {len(spec.errata)} errata, {len(spec.mistakes)} mistakes in {editions}: "
        f"{len(problems) or 'no'} problem{'s' if len(problems) != 1 else ''}"
    )
    return FAILS if problems else OK
