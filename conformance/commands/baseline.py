"""goldformer baseline: record what an implementation gives, and say later what moved."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
from rich.progress import track

from goldformer.adapters import DTYPES, Adapter, AdapterError, find_adapter
from goldformer.conformance.baseline.attribution import Attribution, attributed, recorded_there
from goldformer.conformance.baseline.drift import Drift, headline, remarks
from goldformer.conformance.baseline.judge import Judge
from goldformer.conformance.baseline.manifest import NAME
from goldformer.conformance.baseline.model import Baseline, BaselineError, Key, Request
from goldformer.conformance.baseline.moves import KINDS, Kind, Move, worst_first
from goldformer.conformance.baseline.record import record, with_drawn
from goldformer.conformance.baseline.report import as_json, cells, markdown
from goldformer.conformance.baseline.store import load, save
from goldformer.conformance.baseline.update import ACTS, Act, Change, changes, counted, updated
from goldformer.conformance.commands.console import (
    FAILS,
    OK,
    err,
    no_folder,
    out,
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
from goldformer.conformance.text import number, wrapped
from goldformer.spec import Spec, SpecError, load_spec

#: So many moves are shown, the worst ones, and so many of one component, unless all are asked for.
_SHOWN: Final = 10
_SHOWN_OF_ONE: Final = 2


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
    everything: bool
    timeout: float


def run_check(options: CheckOptions) -> int:
    """Say what moved; the exit status."""
    if message := no_folder({"--json": options.json, "--markdown": options.markdown}):
        return unusable(message)

    def work(adapter: Adapter, spec: Spec) -> int:
        old = load(options.folder)
        if message := options.chosen.problem(with_drawn(spec, old.request), options.folder, old):
            return unusable(message)
        drift = _drift(adapter, spec, options.adapter, options.folder, old, options.chosen, options.threads)
        _report(drift, options)
        told = _attributed(drift, options)
        if options.json:
            extra = {"attribution": _attribution_data(told, drift.moves)} if told else {}
            save_json(options.json, as_json(drift, options.allow) | extra)
        if options.markdown:
            save_text(options.markdown, markdown(drift, options.allow))
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


def _report(drift: Drift, options: CheckOptions) -> None:
    title = drift.new.recordings[-1].title
    out.print(f"{title} against {options.folder}", style="bold", markup=False)
    for name, then, now in drift.environment:
        say(f"Not as it was: {name}: {then} → {now}", "yellow")
    table = plain_table("component", *KINDS, "move÷tol.", right=(*KINDS, "move÷tol."))
    for name, tally in drift.tallies.items():
        table.add_row(name, *cells(tally), style="red" if tally.worst > options.allow else "")
    print_table(table)
    worst = [move for move in worst_first(drift.moves) if move.kind > Kind.IDENTICAL]
    beyond = [move for move in worst if move.kind > options.allow]
    shown = beyond if options.everything else _worst_of_each(beyond)
    for move in shown or worst[:1]:
        say("")
        for line in move_lines(move, drift):
            say(line)
    if len(beyond) > len(shown):
        say(f"\n{len(beyond) - len(shown)} more moved further than allowed: --all shows them, --json has them")
    _say_remarks(drift)
    verdict = "nothing moved" if not worst else f"worst: {drift.tally.worst}"
    say(f"\n{verdict}, allowed: {options.allow}", "bold")
    if beyond:
        say(_what_next(drift, options))


def _worst_of_each(moves: list[Move]) -> list[Move]:
    """The first few of each component."""
    seen: Counter[str] = Counter()
    chosen = []
    for move in moves:
        seen[move.component] += 1
        if seen[move.component] <= _SHOWN_OF_ONE:
            chosen.append(move)
    return chosen[:_SHOWN]


def _what_next(drift: Drift, options: CheckOptions) -> str:
    new = {move.place for move in drift.moves if move.kind is Kind.FORM and _is_new(move, drift)}
    act = "--create" if all(m.place in new for m in drift.moves if m.kind > options.allow) else "--fix"
    return (
        "If this is meant, take it over: "
        f"goldformer baseline update {shlex.join([options.adapter, str(options.folder), act])}"
    )


def _is_new(move: Move, drift: Drift) -> bool:
    entry = drift.old.entries.get(move.key)
    return entry is None or (bool(move.output) and move.output not in entry.outputs)


def move_lines(move: Move, drift: Drift) -> Iterator[str]:
    """One move in full."""
    key, furthest = move.key, move.furthest
    where = f"({move.component}, {key.dtype} on {key.device})"
    yield f"{str(move.kind).upper()}  {key.case}  {where}"
    yield from wrapped(headline(move, drift.spec).partition(": ")[2] or "as it was", "  → ")
    if furthest is not None:
        bound = f"tolerance {move.tolerance:.3g}" if move.tolerance else "must be exact"
        ratio = f", move ÷ tolerance {number(move.ratio)}" if move.ratio is not None and move.tolerance else ""
        yield f"  {move.output}: {move.beyond} of {move.compared} moved further than the tolerance ({bound})"
        yield f"  furthest at {list(furthest.index)}: {furthest.expected!r} → {furthest.got!r}{ratio}"
    if repeat := drift.repeat(key):
        yield f"  Repeat      {repeat}"


def _say_remarks(drift: Drift) -> None:
    listed = list(remarks(drift))
    if listed:
        say("")
    for remark in listed:
        for line in wrapped(remark.text, f"{'  ' if remark.inner else ''}{remark.label}: "):
            say(line)


# ── whose drift it is ──


def _attributed(drift: Drift, options: CheckOptions) -> Attribution | None:
    """Run the third run that was asked for, and say what it tells."""
    if options.attribute is None and options.old_adapter is None:
        return None
    adapter = options.old_adapter or options.adapter
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
        _list_changes(accepted, drift)
        if not accepted or options.dry_run:
            say("nothing to change" if not accepted else "nothing was written: --dry-run")
            return OK
        if refusal := _asked(options):
            return unusable(refusal)
        path = save(options.folder, updated(drift.old, drift.new, accepted))
        say(f"- wrote {options.folder / NAME} and {path.name}")
        return OK

    return _with_adapter(options.adapter, options.timeout, work)


def _list_changes(accepted: list[Change], drift: Drift) -> None:
    for act, kinds in counted(accepted):
        said = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        say(f"{act}: {said}", "bold")
        for change in accepted:
            if change.act == act:
                key = change.move.key
                say(f"  {key.case} ({key.dtype} on {key.device}): {headline(change.move, drift.spec)}")


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
            _say_remarks(column.drift)
    if json:
        save_json(json, of.as_json(found))
    if markdown_:
        save_text(markdown_, of.markdown(found))
    if html:
        from goldformer.conformance.baseline.history_page import page  # Jinja2, which few commands need

        save_text(html, page(found))
    return OK
