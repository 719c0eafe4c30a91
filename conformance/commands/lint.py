"""goldformer lint: the spec against itself."""

from __future__ import annotations

from pathlib import Path

from goldformer.conformance.commands._console import FAILS, OK, out, unusable
from goldformer.spec import ROOT, SpecError, load_spec
from goldformer.spec.lint import lint


def run(root: Path | None) -> int:
    """Load and lint; the exit status."""
    try:
        spec = load_spec((root or ROOT).resolve(), whole=True)
    except SpecError as error:
        return unusable(str(error))
    problems = lint(spec)
    for problem in problems:
        out.print(str(problem), markup=False)
    derived = sum(case.golden is not None for case in spec.cases.values())
    refused = sum(case.error is not None for case in spec.cases.values())
    out.print(
        f"{len(spec.clauses)} clauses, {len(spec.cases)} cases ({derived} with golden values, {refused} refusals), "
        f"{len(spec.properties)} properties, {len(spec.errata)} errata, {len(spec.mistakes)} mistakes: "
        f"{len(problems) or 'no'} problem{'s' if len(problems) != 1 else ''}"
    )
    return FAILS if problems else OK
