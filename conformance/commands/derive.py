"""goldformer derive: write golden values into their files, or prove that none moved."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rich.progress import track

from goldformer.conformance.commands._console import FAILS, OK, err, out, unusable, words
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.spec import ROOT, SpecError, load_spec


def run(*, only_check: bool, cases: tuple[str, ...], jobs: int | None, no_cache: bool, root: Path | None) -> int:
    """Derive, then write or compare; the exit status."""
    try:
        from goldformer.spec.oracle import balls  # fails where python-flint is missing
        from goldformer.spec.oracle.run import default_cache, derivable, derive_all, moved, write_all

        spec = load_spec((root or ROOT).resolve(), underived=not only_check, whole=True)
    except (ImportError, SpecError) as error:
        return unusable(str(error))
    if message := unknown(words(cases), spec.cases, "--case"):
        return unusable(message)
    wanted = derivable(spec, words(cases))
    start = time.perf_counter()
    derivations = derive_all(
        spec, wanted, jobs=jobs or os.cpu_count() or 1, cache=None if no_cache else default_cache()
    )
    shown = track(derivations, "deriving", total=len(wanted), console=err, transient=True, disable=not err.is_terminal)
    try:
        outcomes = list(shown)
    except balls.Unproven as error:
        return unusable(str(error))
    took = time.perf_counter() - start
    fresh = sum(not outcome.cached for outcome in outcomes)
    count = sum(
        len(a.values) for o in outcomes for outputs in o.derived.options.values() for a in (outputs or {}).values()
    )
    widest = max((o.derived.widest for o in outcomes), default=0.0)
    done = (
        f"{count} values of {len(outcomes)} cases, {fresh} cases derived anew, widest ball {widest:.0e}, {took:.1f} s"
    )
    if only_check:
        differing = [(o.case, why) for o in outcomes if (why := moved(o))]
        for case, why in differing:
            out.print(f"{case.place.file}:{case.place.line}: {case.id}: {why}", markup=False)
        out.print(f"{'moved: ' + str(len(differing)) + ' of' if differing else 'proven:'} {done}", markup=False)
        return FAILS if differing else OK
    changed = write_all(outcomes, spec)
    for path in changed:
        out.print(f"wrote {path}", markup=False)
    out.print(f"{'' if changed else 'nothing changed: '}{done}", markup=False)
    return OK
