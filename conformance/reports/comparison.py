"""The records of several implementations on which the same checks were run, side by side."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from goldformer.adapters.process import TIMEOUT
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.reports.record import Outcome, RunRecord
from goldformer.spec import Spec
from goldformer.spec.edition import Edition, join_editions

#: The outcomes of several implementations, the one first that decides.
_WORST_FIRST: Final[tuple[Outcome, ...]] = ("unusable", "fails", "partial")


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The checks to run on every implementation; no components means all of them.

    `timeout` is in seconds, for each call of those that are processes.
    """

    dtypes: tuple[str, ...]
    components: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int = 1
    timeout: float = TIMEOUT


@dataclass(frozen=True, slots=True)
class Comparison:
    """The records of implementations, in the order in which these were named."""

    request: ComparisonRequest
    records: tuple[RunRecord, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all implementations."""
        outcomes = {i.outcome for i in self.records}
        return next((o for o in _WORST_FIRST if o in outcomes), "conforms") if outcomes else "unusable"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each implementation; if two have the same name, with the name by which they were asked for."""
        count = Counter(i.name for i in self.records)
        return tuple(i.name if count[i.name] == 1 else f"{i.name} ({i.given})" for i in self.records)

    def components(self, spec: Spec) -> list[str]:
        """Return the components that were run on some implementation."""
        run = {v.component for i in self.records for v in i.verdicts}
        return [name for name in spec.components if name in run]

    def editions(self, spec: Spec) -> tuple[Edition, ...]:
        """Return the editions of the components that some implementation has."""
        found = {edition for i in self.records for edition in i.editions}
        return tuple(edition for edition in spec.editions.values() if edition in found) or (spec.default_edition,)

    def environment(self, spec: Spec) -> dict[str, str]:
        """Return goldformer, the editions of the spec, Python, system, processor and array libraries, by name."""
        words = {"goldformer": version("goldformer"), "spec": join_editions(self.editions(spec))} | describe_system()
        for record in self.records:
            words |= record.libraries
        return words

    def clauses(self, spec: Spec) -> list[str]:
        """Return the clauses that were judged on some implementation."""
        judged = {id_ for i in self.records for v in i.verdicts if v.status is not Status.SKIPPED for id_ in v.clauses}
        return [id_ for id_ in spec.clauses if id_ in judged]


def describe_system() -> dict[str, str]:
    """Return Python, system and processor, by name."""
    return {
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "processor": _find_processor(),
    }


def _find_processor() -> str:
    """Return the model of the CPU; Linux has it only in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
