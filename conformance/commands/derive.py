"""goldformer derive: write golden values into their files, or prove that no value moved."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, CannotRun, expand_patterns, say, show_progress
from goldformer.spec import ROOT, load_spec
from goldformer.spec.making.promises import list_stale_stamps, write_stamps


@click.command(epilog=options.list_statuses(fails="a golden value moved"))
@click.option(
    "--check", "only_check", is_flag=True, help="Write nothing; fail if a stored value is not the derived one."
)
@options.CASES
@options.JOBS
@click.option("--no-cache", is_flag=True, help="Derive everything again.")
@options.SPEC
def derive(*, only_check: bool, cases: tuple[str, ...], jobs: int | None, no_cache: bool, root: Path | None) -> int:
    """Derive golden values, or prove that no value moved.

    They are computed in ball arithmetic and written into spec/golden, and their digests into spec/version.json; --check
    compares them with the files.
    """
    from goldformer.spec.oracle import balls  # --help needs no python-flint
    from goldformer.spec.oracle.run import default_cache, derive_all, describe_move, list_derivable, write_all

    spec = load_spec((root or ROOT).resolve(), underived=not only_check, whole=True)
    cases = expand_patterns(cases, spec.cases, "--case")
    wanted = list_derivable(spec, cases)
    start = time.perf_counter()
    cache = None if no_cache else default_cache()
    derivations = derive_all(spec, wanted, jobs=jobs or os.cpu_count() or 1, cache=cache)
    try:
        outcomes = list(show_progress(derivations, len(wanted), "deriving"))
    except balls.Unproven as error:
        raise CannotRun(str(error)) from error
    took = time.perf_counter() - start
    fresh = sum(not outcome.cached for outcome in outcomes)
    count = sum(
        len(a.values) for o in outcomes for outputs in o.derived.options.values() for a in (outputs or {}).values()
    )
    widest = max((o.derived.widest for o in outcomes), default=0.0)
    done = f"{count} values of {len(outcomes)} cases, {fresh} cases derived now, widest ball {widest:.0e}, {took:.1f} s"
    if only_check:
        differing = [(o.case, why) for o in outcomes if (why := describe_move(o))]
        for case, why in differing:
            say(f"{case.place.file}:{case.place.line}: {case.id}: {why}")
        # A value that moved makes its digest stale too.
        stale = [] if cases or differing else list(list_stale_stamps(spec))
        for problem in stale:
            say(str(problem))
        say(f"{'moved: ' + str(len(differing)) + ' of' if differing else 'proven:'} {done}")
        return FAILS if differing or stale else OK
    changed = [*write_all(outcomes, spec), *write_stamps(spec)]
    for path in changed:
        say(f"wrote {path}")
    say(f"{'' if changed else 'nothing changed: '}{done}")
    return OK
