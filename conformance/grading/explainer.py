"""Explain the failures of submissions: those that fail alike, number for number, are explained once.

In a class many make the same mistake in the same few lines, and get the same wrong numbers.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from goldformer.conformance.diagnosis.candidates import Imitations
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import BadResult, Result
from goldformer.spec import Spec

#: The number of explanations that are kept: each takes some hundred kB.
_KEPT: Final = 64


class Explainer:
    """Explains one submission after the other; what it says of one does not depend on those before."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._imitations = Imitations()
        self._known: OrderedDict[str, DiagnosedRun] = OrderedDict()

    def explain(self, judgements: Sequence[Judgement]) -> DiagnosedRun:
        """Return the verdicts of all checks of a submission with what explains each failure.

        The submission has given all its answers: its mistake is not isolated, which would take further calls.
        """
        key = digest_failures(judgements)
        known = self._known.get(key)
        if known is None:
            diagnosis = Diagnosis(self._spec, imitations=self._imitations, isolates=False)
            explained = diagnosis.explain_all(judgements)
            if any(note.fault for note in explained.notes.values()):
                return explained
            known = self._known[key] = replace(explained, verdicts=())
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return replace(known, verdicts=tuple(judgement.verdict for judgement in judgements))


def digest_failures(judgements: Sequence[Judgement]) -> str:
    """Return a digest of all that a diagnosis without calls reads: of a check that passes, what it was given."""
    digest = hashlib.sha256()
    for judgement in judgements:
        verdict, outcome = judgement.verdict, judgement.outcome
        outputs = outcome.outputs if isinstance(outcome, Result) else {}
        told: tuple[object, ...] = (verdict.check, verdict.dtype, verdict.status, verdict.reason, [*outputs])
        if verdict.bad:
            # Where it stands in a file is no matter of the numbers, and is part of the message if it is told.
            told += (replace(verdict, detail="", seconds=0.0), type(outcome), str(outcome) if not outputs else "")
            told += (sorted(outcome.unreached),) if isinstance(outcome, BadResult) else ()
        digest.update(repr(told).encode())
        for array in outputs.values() if verdict.bad else ():
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
