"""goldformer lint: the spec against itself."""

from __future__ import annotations

from pathlib import Path

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, say
from goldformer.spec import ROOT, load_spec
from goldformer.spec.lint import lint as find_problems


@click.command(epilog=options.list_statuses(fails="the spec contradicts itself"))
@options.SPEC
def lint(*, root: Path | None) -> int:
    """Check the spec against itself.

    It looks for gaps of coverage in both directions, wrong printed digits, errata, sizes and blind cases.
    """
    spec = load_spec((root or ROOT).resolve(), whole=True)
    problems = find_problems(spec)
    for problem in problems:
        say(str(problem))
    derived = sum(case.golden is not None for case in spec.cases.values())
    refused = sum(case.error is not None for case in spec.cases.values())
    say(
        f"{len(spec.clauses)} clauses, {len(spec.cases)} cases ({derived} with golden values, {refused} refusals), "
        f"{len(spec.properties)} properties, {len(spec.errata)} errata, {len(spec.mistakes)} mistakes: "
        f"{len(problems) or 'no'} problem{'s' if len(problems) != 1 else ''}"
    )
    return FAILS if problems else OK
