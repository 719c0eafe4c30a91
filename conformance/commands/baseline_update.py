"""goldformer baseline update: show what would change in a baseline, ask, and write it."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from goldformer.adapters import Adapter
from goldformer.conformance.baseline.manifest import NAME
from goldformer.conformance.baseline.moves import Kind
from goldformer.conformance.baseline.store import alone, save
from goldformer.conformance.baseline.update import ACTS, Act, changes, updated
from goldformer.conformance.commands._baseline_text import list_changes
from goldformer.conformance.commands._console import OK, say, unusable
from goldformer.conformance.commands.baseline_part import Chosen, drift_now, with_adapter
from goldformer.spec import Spec


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
        # What is read is what is written over; and where there is no folder, none is made to say so.
        writes = not options.dry_run and options.folder.is_dir()
        with alone(options.folder) if writes else contextlib.nullcontext():
            return change(adapter, spec)

    def change(adapter: Adapter, spec: Spec) -> int:
        drift = drift_now(adapter, spec, options.adapter, options.folder, options.chosen, options.threads)
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

    return with_adapter(options.adapter, options.timeout, work)


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
