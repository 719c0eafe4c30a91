"""The suite's eye on a baseline: a case whose result moved further than rounding fails, whatever it conforms to."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from goldformer import __version__
from goldformer.conformance.baseline.drift import headline
from goldformer.conformance.baseline.environment import recorded
from goldformer.conformance.baseline.judge import Judge
from goldformer.conformance.baseline.model import Baseline, Key
from goldformer.conformance.baseline.moves import Kind, worst_first
from goldformer.conformance.baseline.record import Keeper, is_kept, note_end
from goldformer.conformance.baseline.store import load
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.verdict import Status, Verdict


class Guard:
    """A baseline, and what the cases give now; BaselineError where it cannot be read."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.old = load(folder)
        self.keeper = Keeper()
        self._judge = Judge(bench.spec)
        self._bench = bench
        self._command = ["goldformer", "baseline", "check", bench.adapter.origin, str(folder)]
        self._recording = recorded(bench.adapter, self.old.request)

    def judged(self, judgement: Judgement, verdict: Verdict) -> Verdict:
        """Return the explained verdict of a judgement, failed where what it is about moved."""
        self.keeper.keep(judgement)
        key = Key(verdict.check, verdict.dtype, verdict.device)
        if verdict.kind != "case" or not self._has_a_say(key, verdict.component):
            return verdict
        if verdict.reason == "not-implemented" and key not in self.old.entries:
            return verdict
        absent: dict[Key, str] = {}
        note_end(verdict, self.keeper, absent)
        entries = {key: self.keeper.entries[key]} if key in self.keeper.entries else {}
        if key not in entries and key not in self.old.entries:
            return verdict
        new = Baseline(__version__, "", self.old.request, (self._recording,), entries, absent)
        worst = worst_first(self._judge.judge(key, self.old, new))[0]
        if worst.kind <= Kind.ROUNDING:
            return verdict
        said = f"since the baseline, {headline(worst, self._judge.spec)}"
        if verdict.bad:
            ended = key in entries and entries[key].ended is not None
            # How it ended is said already.
            short = f"since the baseline, {worst.kind}: it gave a result then" if ended and self._gave(key) else said
            return replace(verdict, message=f"{verdict.message}; {short}")
        words = [*self._command, "--case", key.case, "--dtype", key.dtype]
        return replace(
            verdict, status=Status.FAILED, reason="moved", message=said, catches=(), matches=None,
            reproduce=shlex.join(words),
        )  # fmt: skip

    def _gave(self, key: Key) -> bool:
        return key in self.old.entries and self.old.entries[key].ended is None

    def _has_a_say(self, key: Key, component: str) -> bool:
        """Whether the baseline recorded such calls at all."""
        request, case = self.old.request, self._bench.spec.cases[key.case]
        random = case.random and key not in self.old.entries
        recorded_ = not request.components or component in request.components
        return (
            is_kept(case)
            and recorded_
            and not random
            and (key.dtype in request.dtypes)
            and (key.device in request.devices)
        )
