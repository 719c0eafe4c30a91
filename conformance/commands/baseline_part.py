"""Which part of a baseline is looked at, and what an adapter moved in it: what check and update share."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import track

from goldformer.adapters import Adapter, AdapterError, find_adapter
from goldformer.conformance.baseline.drift import Drift
from goldformer.conformance.baseline.judge import Judge
from goldformer.conformance.baseline.model import Baseline, BaselineError, Key, Request
from goldformer.conformance.baseline.record import record, with_drawn
from goldformer.conformance.baseline.store import load
from goldformer.conformance.commands._console import err, unusable, words
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.conformance.run import Check
from goldformer.spec import Spec, SpecError, load_spec


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which part of a baseline is looked at; nothing named means all of it."""

    components: tuple[str, ...]
    cases: tuple[str, ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]

    @classmethod
    def of(
        cls, component: tuple[str, ...], case: tuple[str, ...], dtype: tuple[str, ...], device: tuple[str, ...]
    ) -> Chosen:
        """From options that may be repeated or comma-separated."""
        return cls(words(component), words(case), words(dtype), words(device))

    def problem(self, spec: Spec, folder: Path, old: Baseline) -> str | None:
        """What to say of the first word that names nothing in a baseline, or None."""
        found = {key.case for key in old.entries} | set(spec.cases)
        if message := unknown(self.components, spec.components, "--component"):
            return message
        if message := unknown(self.cases, tuple(found), "--case"):
            return message
        for option, given, has in (
            ("--dtype", self.dtypes, old.request.dtypes),
            ("--device", self.devices, old.request.devices),
        ):
            for word in given:
                if word not in has:
                    return f"{option} {word}: {folder} has {', '.join(has)}"
        return None

    def request(self, old: Baseline, threads: int | None) -> Request:
        """What a baseline was recorded by, as far as it is chosen."""
        request = old.request
        components = self.components or request.components
        if request.components and self.components:
            components = tuple(name for name in request.components if name in self.components)
        return replace(
            request, dtypes=self.dtypes or request.dtypes, devices=self.devices or request.devices,
            components=components, threads=threads or request.threads,
        )  # fmt: skip

    def keys(self, *baselines: Baseline) -> set[Key]:
        """The calls that are chosen."""
        return {
            key
            for baseline in baselines
            for key, entry in baseline.entries.items()
            if (not self.components or entry.component in self.components)
            and (not self.cases or key.case in self.cases)
            and (not self.dtypes or key.dtype in self.dtypes)
            and (not self.devices or key.device in self.devices)
        }


def drift_now(adapter: Adapter, spec: Spec, given: str, folder: Path, chosen: Chosen, threads: int | None) -> Drift:
    """What an adapter gives now, held against the baseline of a folder; BaselineError where that cannot be."""
    old = load(folder)
    if message := chosen.problem(with_drawn(spec, old.request), folder, old):
        raise BaselineError(message)
    request = chosen.request(old, threads)
    new = record(adapter, spec, request, watched, chosen.cases)
    judge = Judge(with_drawn(spec, old.request))
    keys = chosen.keys(old, new)
    if not keys:
        raise BaselineError(f"{folder}: has nothing that fits all of these options")
    words_ = ["goldformer", "baseline", "check", given, str(folder)]
    words_ += ["--threads", str(threads)] if threads is not None and threads != old.request.threads else []
    return Drift(old, new, tuple(judge.moves(old, new, keys)), judge.spec, shlex.join(words_))


def with_adapter(name: str, timeout: float, work: Callable[[Adapter, Spec], int]) -> int:
    """Do something with an adapter; whatever makes that impossible is said, and is 2."""
    try:
        spec = load_spec()
        adapter = find_adapter(name, spec, timeout)
        with contextlib.closing(adapter):
            return work(adapter, spec)
    except (AdapterError, SpecError, BaselineError) as error:
        return unusable(str(error))


def watched(todo: Iterable[Check], total: int) -> Iterable[Check]:
    """The checks, with a bar of how many of them have run."""
    return track(todo, "recording", total=total, console=err, transient=True, disable=not err.is_terminal)
