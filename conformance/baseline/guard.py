"""Baselines in the suite: a case whose result moved further than rounding fails, even if it conforms."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from goldformer.conformance.baseline.classify import Classifier
from goldformer.conformance.baseline.drift import describe_move
from goldformer.conformance.baseline.environment import describe_run
from goldformer.conformance.baseline.model import Baseline, Key
from goldformer.conformance.baseline.moves import Kind, sort_worst_first
from goldformer.conformance.baseline.record import ResultCollector, is_recordable, note_end
from goldformer.conformance.baseline.store import load
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.verdict import Status, Verdict


class Guard:
    """Compares results with a baseline; BaselineError if that cannot be read."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.old = load(folder)
        self.collector = ResultCollector()
        self._classifier = Classifier(bench.spec)
        self._bench = bench
        self._command = ["goldformer", "baseline", "check", bench.adapter.origin, str(folder)]
        self._recording = describe_run(bench.adapter, self.old.request)

    def check_verdict(self, judgement: Judgement, verdict: Verdict) -> Verdict:
        """Return the verdict of a judgement, failed if the result moved further than rounding."""
        self.collector.add(judgement)
        key = Key(verdict.check, verdict.dtype, verdict.device)
        if verdict.kind != "case" or not self._is_recorded(key, verdict.component):
            return verdict
        if verdict.reason == "not-implemented" and key not in self.old.entries:
            return verdict
        absent: dict[Key, str] = {}
        note_end(verdict, self.collector, absent)
        entries = {key: self.collector.entries[key]} if key in self.collector.entries else {}
        if key not in entries and key not in self.old.entries:
            return verdict
        new = Baseline(version("goldformer"), "", self.old.request, (self._recording,), entries, absent)
        worst = sort_worst_first(self._classifier.classify(key, self.old, new))[0]
        if worst.kind <= Kind.ROUNDING:
            return verdict
        message = f"since the baseline, {describe_move(worst, self._classifier.spec)}"
        if verdict.bad:
            ended = key in entries and entries[key].ended is not None
            # The message already says how it ended.
            short = (
                f"since the baseline, {worst.kind}: it gave a result then"
                if ended and self._gave_result(key)
                else message
            )
            return replace(verdict, message=f"{verdict.message}; {short}")
        command = [*self._command, "--case", key.case, "--dtype", key.dtype]
        return replace(
            verdict, status=Status.FAILED, reason="moved", message=message, catches=(),
            reproduce=shlex.join(command),
        )  # fmt: skip

    def _gave_result(self, key: Key) -> bool:
        return key in self.old.entries and self.old.entries[key].ended is None

    def _is_recorded(self, key: Key, component: str) -> bool:
        """Return True if the baseline recorded such calls."""
        request, case = self.old.request, self._bench.spec.cases[key.case]
        random = case.random and key not in self.old.entries
        asked = not request.components or component in request.components
        asked = asked and key.dtype in request.dtypes and key.device in request.devices
        return asked and not random and is_recordable(case)
