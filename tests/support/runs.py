"""Runs that are made up of verdicts, so that what is said of them can be checked without calling anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from goldformer.conformance.diagnosis import findings, suspects
from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis, DiagnosedRun, Explained
from goldformer.conformance.diagnosis.evidence import Call, CallKind
from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.diagnosis.suspects import Explanation, Suspect
from goldformer.conformance.judging.verdict import Verdict
from goldformer.spec import Spec

Checks = Iterable[Verdict | Explained]


_OF_DIAGNOSIS = {field.name for field in fields(CheckDiagnosis)} - {"example", "reproduce"}


def change(check: Verdict | Explained, /, **changes: Any) -> Explained:
    """Return a check with other values of some fields, of its verdict or of its diagnosis."""
    verdict, diagnosis = check if isinstance(check, Explained) else Explained(check)
    found = {name: value for name, value in changes.items() if name in _OF_DIAGNOSIS}
    others = {name: value for name, value in changes.items() if name not in found}
    return Explained(replace(verdict, **others), replace(diagnosis, **found))


def make_run(checks: Checks) -> DiagnosedRun:
    """Return the run of some checks, with what their diagnoses say of causes as evidence."""
    listed = [check if isinstance(check, Explained) else Explained(check) for check in checks]
    run = DiagnosedRun.of(listed)
    for verdict, found in listed:
        if found.rules_out:
            run.evidence.contradict(Call(verdict.key), found.rules_out)
        run.evidence.contradict(Call(verdict.key, CallKind.REDRAWN), found.refutes)
        run.evidence.add(Call(verdict.key, CallKind.REDRAWN), dict.fromkeys(found.confirms, 0.0))
    return run


def diagnose(checks: Checks, spec: Spec) -> Iterator[Finding]:
    """Yield the findings of a run that is made up."""
    return iter(findings.diagnose(make_run(checks), spec))


def rank_explanations(checks: Checks, component: str, spec: Spec) -> list[Explanation]:
    """Return the explanations of a run that is made up."""
    return suspects.rank_explanations(make_run(checks), component, spec)


def rank_suspects(checks: Checks, component: str, spec: Spec) -> list[Suspect]:
    """Return the suspects of a run that is made up."""
    return suspects.rank_suspects(make_run(checks), component, spec)
