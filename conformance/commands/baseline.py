"""goldformer baseline record, check and history: record what an implementation gives, and say later what moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from goldformer.adapters import DTYPES, Adapter
from goldformer.conformance.baseline.attribution import Attribution, attributed, is_this, recorded_there
from goldformer.conformance.baseline.drift import Drift
from goldformer.conformance.baseline.manifest import NAME
from goldformer.conformance.baseline.model import BaselineError, Request
from goldformer.conformance.baseline.moves import Kind, Move
from goldformer.conformance.baseline.record import record, unrepeated
from goldformer.conformance.baseline.report import as_json, markdown
from goldformer.conformance.baseline.store import alone, save
from goldformer.conformance.commands._baseline_text import report, say_remarks, what_next
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    err,
    no_folder,
    plain_table,
    print_table,
    save_json,
    say,
    unusable,
)
from goldformer.conformance.commands._console import save as save_text
from goldformer.conformance.commands.baseline_part import Chosen, drift_now, watched, with_adapter
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.spec import Spec, SpecError, load_spec

_UNSTEADY = (
    "goldformer: a second call gave other numbers: {}. What changes by itself will be told as moved: find out with "
    "`goldformer check --property repeat-calls`, or leave the component out with --component."
)

# ── record ──


def run_record(adapter: str, folder: Path, request: Request, timeout: float) -> int:
    """Record a baseline; the exit status."""

    def work(found: Adapter, spec: Spec) -> int:
        if message := unknown(request.dtypes, DTYPES, "--dtype") or unknown(
            request.components, spec.components, "--component"
        ):
            return unusable(message)
        with alone(folder):
            made = record(found, spec, request, watched)
            given = [entry for entry in made.entries.values() if entry.outputs]
            if not given:
                ends = (entry.ended.message for entry in made.entries.values() if entry.ended)
                return unusable(f"{adapter}: no call gave a result that could be recorded: {next(ends)}")
            moving = unrepeated(found, spec, made)
            path = save(folder, made)
        outputs = sum(len(entry.outputs) for entry in given)
        ended = len(made.entries) - len(given)
        without = f", {ended} calls without a result" if ended else ""
        say(f"{made.recordings[0].title}: {outputs} outputs of {len(given)} calls{without}")
        say(f"- wrote {folder / NAME} and {path.name} ({path.stat().st_size / 2**20:.1f} MiB)")
        if moving:
            err.print(_UNSTEADY.format(", ".join(f"{key.case} ({key.dtype}, {key.device})" for key in moving)))
        return OK

    return with_adapter(adapter, timeout, work)


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
        drift = drift_now(adapter, spec, options.adapter, options.folder, options.chosen, options.threads)
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

    return with_adapter(options.adapter, options.timeout, work)


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
