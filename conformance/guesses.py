"""Judge a component whose call is a guess only if known mistakes explain it, and otherwise say what its calls show.

Code that is right and computes something else fails as wrong code does. What tells the two apart is that a mistake
gives the output of every failing case, digit by digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from goldformer.adapters import Adapter
from goldformer.adapters.inference import MisfitError
from goldformer.conformance.diagnosis.causes import DROPOUT
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, NO_EFFECT, PLACE
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.suspects import rank_explanations
from goldformer.spec import Spec

#: The fewest failing cases that mistakes must reproduce: a single one is like many mistakes.
_FEWEST: Final = 2
#: The least share of failing cases that they must reproduce: some cannot be compared, as they are large or raise.
_LEAST_SHARE: Final = 0.9


def leave_out_guesses(run: DiagnosedRun, adapter: Adapter, spec: Spec) -> tuple[DiagnosedRun, Adapter]:
    """Return a run and an adapter without the guessed components whose failures no mistakes of the catalogue explain.

    MisfitError says what was found out of them if nothing else is left.
    """
    asked = {verdict.component for verdict in run}
    wrong = {
        name: _describe(run, name, what, spec)
        for name, what in adapter.guesses.items()
        if name in asked and not _is_explained(run, name, spec)
    }
    return run.select(lambda verdict: verdict.component not in wrong), leave_out(adapter, wrong)


def leave_out(adapter: Adapter, reasons: Mapping[str, str]) -> Adapter:
    """Return an adapter without some guessed components, named as unmatched, with the reason for each as a hint.

    MisfitError if nothing else is left.
    """
    functions = {name: function for name, function in adapter.functions.items() if name not in reasons}
    if not functions:
        raise MisfitError(" ".join(reasons.values()))
    names = tuple(adapter.guesses[name] for name in reasons)
    called = tuple(f"{name} is called as " for name in reasons)
    hints = [hint for hint in adapter.hints if not hint.startswith(called)]
    said = (f"{name} is not checked: {reason}" for name, reason in zip(names, reasons.values(), strict=True))
    return replace(adapter, functions=functions, hints=(*hints, *said), unmatched=(*adapter.unmatched, *names))


def _is_explained(run: DiagnosedRun, component: str, spec: Spec) -> bool:
    """Return True if mistakes of the catalogue explain what fails of a component, with no option beside them."""
    bad = [verdict for verdict in run if verdict.component == component and verdict.bad]
    if any(verdict.catches == (DROPOUT,) for verdict in bad):
        return True
    count = sum(verdict.kind == "case" for verdict in bad)
    best = next(iter(rank_explanations(run, component, spec)), None)
    if best is None or best.passing or best.new_calls or best.equals < max(_FEWEST, _LEAST_SHARE * count):
        return False
    # Where an output is NaN, code of the same values has other gradients.
    differing = [check for check in best.refuting if spec.cases[check].cotangent is None]
    return not differing and not any(cause.option or cause.generated for cause in best.causes)


def _describe(run: DiagnosedRun, component: str, what: str, spec: Spec) -> str:
    """Return what the calls of a component show, of which names say how they are made."""
    found = diagnose(run.select(lambda verdict: verdict.component == component), spec)
    said = [f"{finding.label}: {finding.text.rstrip('.')}." for finding in found if finding.label in (PLACE, NO_EFFECT)]
    # An edit or an option that gives its values may be what the code is meant to do.
    given = [f"Its values are given by this: {finding.text}" for finding in found if finding.label == MISTAKE_FOUND]
    told = (
        f"No call of {what} that was tried gives golden values. Called as {component} by its names, no known mistakes "
        "explain all that fails: it has others, it is called in another way, or it computes something else."
    )
    advice = "`goldformer infer` writes the adapter of its names, to compare with your code."
    return " ".join([told, *given[:1], *said, advice])
