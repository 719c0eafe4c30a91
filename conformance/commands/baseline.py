"""goldformer baseline: record what an implementation gives, and say later what moved."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.progress import track

from goldformer.adapters import DTYPES, Adapter, AdapterError, find_adapter
from goldformer.conformance.baseline.attribution import Attribution, attributed, is_this, recorded_there
from goldformer.conformance.baseline.drift import Drift
from goldformer.conformance.baseline.judge import Judge
from goldformer.conformance.baseline.manifest import NAME
from goldformer.conformance.baseline.model import Baseline, BaselineError, Key, Request
from goldformer.conformance.baseline.moves import Kind, Move
from goldformer.conformance.baseline.record import record, with_drawn
from goldformer.conformance.baseline.report import as_json, markdown
from goldformer.conformance.baseline.store import load, save
from goldformer.conformance.baseline.update import ACTS, Act, changes, updated
from goldformer.conformance.commands.baseline_text import list_changes, report, say_remarks, what_next
from goldformer.conformance.commands.console import (
    FAILS,
    OK,
    err,
    no_folder,
    plain_table,
    print_table,
    save_json,
    say,
    unknown,
    unusable,
    words,
)
from goldformer.conformance.commands.console import save as save_text
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


def _with_adapter(name: str, timeout: float, work: Callable[[Adapter, Spec], int]) -> int:
    """Do something with an adapter; whatever makes that impossible is said, and is 2."""
    try:
        spec = load_spec()
        adapter = find_adapter(name, spec, timeout)
        with contextlib.closing(adapter):
            return work(adapter, spec)
    except (AdapterError, SpecError, BaselineError) as error:
        return unusable(str(error))


def _watched(todo: Iterable[Check], total: int) -> Iterable[Check]:
    return track(todo, "recording", total=total, console=err, transient=True, disable=not err.is_terminal)


# ── record ──


def run_record(adapter: str, folder: Path, request: Request, timeout: float) -> int:
    """Record a baseline; the exit status."""

    def work(found: Adapter, spec: Spec) -> int:
        if message := unknown(request.dtypes, DTYPES, "--dtype") or unknown(
            request.components, spec.components, "--component"
        ):
            return unusable(message)
        made = record(found, spec, request, _watched)
        given = [entry for entry in made.entries.values() if entry.outputs]
        if not given:
            ends = (entry.ended.message for entry in made.entries.values() if entry.ended)
            return unusable(f"{adapter}: no call gave a result that could be recorded: {next(ends)}")
        path = save(folder, made)
        outputs = sum(len(entry.outputs) for entry in given)
        ended = len(made.entries) - len(given)
        without = f", {ended} calls without a result" if ended else ""
        say(f"{made.recordings[0].title}: {outputs} outputs of {len(given)} calls{without}")
        say(f"- wrote {folder / NAME} and {path.name} ({path.stat().st_size / 2**20:.1f} MiB)")
        return OK

    return _with_adapter(adapter, timeout, work)


# ── check ──


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The command line of `goldformer baseline check`."""

    adapter: str
    folder: Path
    chosen: Chosen
    allow: Kind
    threads: int | None
    attribute: Path | None
    old_adapter: str | None
    json: Path | None
    markdown: Path | None
    html: Path | None
    everything: bool
    timeout: float


def run_check(options: CheckOptions) -> int:
    """Say what moved; the exit status."""
    if message := no_folder({"--json": options.json, "--markdown": options.markdown, "--html": options.html}):
        return unusable(message)

    def work(adapter: Adapter, spec: Spec) -> int:
        old = load(options.folder)
        if message := options.chosen.problem(with_drawn(spec, old.request), options.folder, old):
            return unusable(message)
        drift = _drift(adapter, spec, options.adapter, options.folder, old, options.chosen, options.threads)
        report(drift, options.folder, options.allow, everything=options.everything)
        if drift.tally.worst > options.allow:
            say(what_next(drift, options.adapter, options.folder, options.allow))
        told = _attributed(drift, options)
        if options.json:
            extra = {"attribution": _attribution_data(told, drift.moves)} if told else {}
            save_json(options.json, as_json(drift, options.allow) | extra)
        if options.markdown:
            save_text(options.markdown, markdown(drift, options.allow))
        if options.html:
            from goldformer.conformance.baseline.drift_page import page  # Jinja2, which few commands need

            save_text(options.html, page(drift, options.allow))
        return OK if drift.tally.worst <= options.allow else FAILS

    return _with_adapter(options.adapter, options.timeout, work)


def _drift(
    adapter: Adapter, spec: Spec, given: str, folder: Path, old: Baseline, chosen: Chosen, threads: int | None
) -> Drift:
    """What an adapter gives now, held against a baseline."""
    request = chosen.request(old, threads)
    new = record(adapter, spec, request, _watched, chosen.cases)
    judge = Judge(with_drawn(spec, old.request))
    keys = chosen.keys(old, new)
    if not keys:
        raise BaselineError(f"{folder}: has nothing that fits all of these options")
    words_ = ["goldformer", "baseline", "check", given, str(folder)]
    words_ += ["--threads", str(threads)] if threads is not None and threads != old.request.threads else []
    return Drift(old, new, tuple(judge.moves(old, new, keys)), judge.spec, shlex.join(words_))


# ── whose drift it is ──


def _attributed(drift: Drift, options: CheckOptions) -> Attribution | None:
    """Run the third run that was asked for, and say what it tells."""
    if options.attribute is None and options.old_adapter is None:
        return None
    adapter = options.old_adapter or options.adapter
    if options.attribute is not None and options.old_adapter is None and is_this(options.attribute):
        raise BaselineError(
            f"--attribute {options.attribute}: is the interpreter that runs this, and tells nothing: "
            "name one that has the old code or the old libraries, or the old adapter with --old-adapter"
        )
    third = recorded_there(options.attribute, adapter, drift.new.request)
    told = attributed(drift.old, drift.new, third, drift.moves, old_code=options.old_adapter is not None)
    say(f"\nWhose drift it is, by {told.run} ({told.environment}):", "bold")
    counts = told.counts(drift.moves)
    for kind, origins in counts.items():
        say(f"  {kind}: " + ", ".join(f"{count} {origin.value}" for origin, count in origins.items()))
    if not counts:
        say("  nothing moved")
    return told


def _attribution_data(told: Attribution, moves: Iterable[Move]) -> dict[str, object]:
    counts = {str(kind): {o.name.lower(): n for o, n in mine.items()} for kind, mine in told.counts(moves).items()}
    return {"run": told.run, "environment": told.environment, "counts": counts}


# ── update ──


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """The command line of `goldformer baseline update`."""

    adapter: str
    folder: Path
    chosen: Chosen
    acts: tuple[Act, ...]
    allow: Kind
    threads: int | None
    dry_run: bool
    yes: bool
    timeout: float


def run_update(options: UpdateOptions) -> int:
    """Show what would change in a baseline, ask, and write it; the exit status."""
    if not options.dry_run and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return unusable(
            "baseline update writes nothing where CI is set: run it on a machine of your own, read what it lists, "
            f"and commit {options.folder}; --dry-run only lists it"
        )

    def work(adapter: Adapter, spec: Spec) -> int:
        old = load(options.folder)
        if message := options.chosen.problem(with_drawn(spec, old.request), options.folder, old):
            return unusable(message)
        drift = _drift(adapter, spec, options.adapter, options.folder, old, options.chosen, options.threads)
        accepted = changes(drift.old, drift.new, drift.moves, options.acts, options.allow)
        list_changes(accepted, drift)
        if not accepted or options.dry_run:
            say("nothing to change" if not accepted else "nothing was written: --dry-run")
            return OK
        if refusal := _asked(options):
            return unusable(refusal)
        path = save(options.folder, updated(drift.old, drift.new, accepted))
        say(f"- wrote {options.folder / NAME} and {path.name}")
        return OK

    return _with_adapter(options.adapter, options.timeout, work)


def _asked(options: UpdateOptions) -> str:
    """Ask whether to write; why not, or nothing."""
    if options.yes:
        return ""
    if not on_terminal():
        return "nothing was written: there is no terminal to ask on; --yes writes without asking"
    return "" if click.confirm(f"Write this to {options.folder}?") else "nothing was written"


def on_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty()


def acts_of(chosen: dict[Act, bool]) -> tuple[Act, ...]:
    """The acts that were asked for; without any, only what is new is added."""
    return tuple(act for act in ACTS if chosen[act]) or ("create",)


# ── history ──


def run_history(folders: tuple[Path, ...], json: Path | None, markdown_: Path | None, html: Path | None) -> int:
    """Line up baselines; the exit status."""
    from goldformer.conformance.baseline import history as of  # which check has no use for

    if message := no_folder({"--json": json, "--markdown": markdown_, "--html": html}):
        return unusable(message)
    try:
        found = of.history(folders, load_spec())
    except (BaselineError, SpecError) as error:
        return unusable(str(error))
    table = plain_table("component", *(column.name for column in found.columns))
    for name in found.components:
        table.add_row(name, *(of.cell(column, name) for column in found.columns))
    print_table(table)
    for column in found.columns[1:]:
        if column.drift is not None:
            changed = "; ".join(f"{name} {then} → {now}" for name, then, now in column.drift.environment)
            say(f"{column.name}: {changed or 'the same environment'}", "dim")
            say_remarks(column.drift)
    if json:
        save_json(json, of.as_json(found))
    if markdown_:
        save_text(markdown_, of.markdown(found))
    if html:
        from goldformer.conformance.baseline.history_page import page  # Jinja2, which few commands need

        save_text(html, page(found))
    return OK
