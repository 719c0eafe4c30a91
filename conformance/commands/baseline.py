"""goldformer baseline: record what an implementation returns, and say later what moved."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import click

from goldformer.adapters import DTYPES, Adapter
from goldformer.conformance.baseline import drift_data
from goldformer.conformance.baseline.classify import Classifier
from goldformer.conformance.baseline.drift import Drift
from goldformer.conformance.baseline.drift_page import page as drift_page
from goldformer.conformance.baseline.manifest import NAME
from goldformer.conformance.baseline.model import (
    MOST_THREADS,
    Baseline,
    BaselineError,
    BaselineRequest,
    Key,
)
from goldformer.conformance.baseline.moves import KINDS, Kind
from goldformer.conformance.baseline.record import find_unrepeatable, record, require_components
from goldformer.conformance.baseline.store import load, lock, save
from goldformer.conformance.baseline.update import apply_moves, list_acceptable
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._baseline_text import (
    describe_failed_calls,
    describe_files,
    print_changes,
    print_drift,
    print_recording,
    suggest_update,
)
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    CannotRun,
    err,
    expand_patterns,
    require_known,
    require_outputs,
    save_json,
    say,
    show_progress,
)
from goldformer.conformance.commands._console import save as save_text
from goldformer.conformance.loading import Reading, load_implementation
from goldformer.spec import Spec, load_spec

STATUSES: Final = options.list_statuses(ok="done, or nothing moved too far", fails="something moved")
_UNSTEADY: Final = (
    "goldformer: a second call gave other numbers: {}. Later checks will report them as moved: find out why with "
    "`goldformer check --property repeat-calls`, or leave the component out with --component."
)
_FILTERS: Final = (
    options.COMPONENTS,
    options.CASES,
    click.option(
        "--dtype", "dtypes", multiple=True, callback=options.split_words(), help="Only this dtype of those recorded."
    ),
    click.option(
        "--device",
        "devices",
        multiple=True,
        callback=options.split_words(),
        help="Only this device of those recorded.",
    ),
    click.option(
        "--tf32", is_flag=True, help="Allow TF32 in matrix products of float32, also if the recording did not."
    ),
    click.option(
        "--threads",
        type=click.IntRange(1, MOST_THREADS),
        default=None,
        help="Threads on the CPU.  [default: as recorded]",
    ),
    options.TIMEOUT,
    click.option(
        "--allow",
        type=click.Choice(KINDS),
        default="rounding",
        show_default=True,
        callback=lambda _context, _parameter, value: Kind[value.upper()],
        help="The worst class of a move that is no failure.",
    ),
)


def _refuse_baseline(context: click.Context, _: click.Parameter, adapter: str) -> str:
    """Return the adapter; CannotRun if it is the folder of a baseline, whose place is the second one."""
    if (Path(adapter) / NAME).is_file():
        first = f"goldformer baseline {context.info_name} ADAPTER {shlex.quote(adapter)}"
        raise CannotRun(f"{adapter} is a baseline: name the adapter first, and then the baseline: {first}")
    return adapter


_ADAPTER: Final = click.argument("adapter", shell_complete=options.complete_adapter, callback=_refuse_baseline)


@dataclass(frozen=True, slots=True)
class Filter:
    """The part of a baseline that is compared; an empty filter means all of it."""

    components: tuple[str, ...]
    cases: tuple[str, ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    tf32: bool
    threads: int | None

    def expand(self, spec: Spec, folder: Path, old: Baseline) -> Filter:
        """Return this filter with names for its patterns; CannotRun for the first word that fits nothing."""
        recorded = [key.case for key in old.entries] if self.cases else []
        expanded = replace(
            self,
            components=expand_patterns(self.components, spec.components, "--component"),
            cases=expand_patterns(self.cases, [*spec.cases, *recorded], "--case"),
        )
        for option, words, has in (
            ("--dtype", self.dtypes, old.request.dtypes),
            ("--device", self.devices, old.request.devices),
        ):
            for word in words:
                if word not in has:
                    raise CannotRun(f"{option} {word}: {folder} has {', '.join(has)}")
        return expanded

    def narrow(self, request: BaselineRequest) -> BaselineRequest:
        """Return the request of a baseline, limited to this part."""
        components = self.components or request.components
        if request.components and self.components:
            components = tuple(name for name in request.components if name in self.components)
        chosen = {
            "dtypes": self.dtypes, "devices": self.devices, "components": components, "threads": self.threads,
            "tf32": self.tf32,
        }  # fmt: skip
        return request.model_copy(update={name: value for name, value in chosen.items() if value})

    def select(self, *baselines: Baseline) -> set[Key]:
        """Return the calls of this part."""
        return {
            key
            for baseline in baselines
            for key, entry in baseline.entries.items()
            if (not self.components or entry.component in self.components)
            and (not self.cases or key.case in self.cases)
            and (not self.dtypes or key.dtype in self.dtypes)
            and (not self.devices or key.device in self.devices)
        }


def _add_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that select a part of a baseline, and pass that part on as `part`."""
    names = [field.name for field in fields(Filter)]

    @wraps(command)
    def select_part(**given: Any) -> Any:
        return command(part=Filter(**{name: given.pop(name) for name in names}), **given)

    for option in reversed(_FILTERS):
        option(select_part)
    return select_part


def measure_drift(adapter: Adapter, spec: Spec, given: str, folder: Path, part: Filter) -> Drift:
    """Record an adapter, and compare it with the baseline of a folder."""
    old = load(folder)
    require_components(spec, old.request)
    part = part.expand(spec, folder, old)
    new = record(adapter, spec, part.narrow(old.request), partial(show_progress, what="recording"), part.cases)
    keys = part.select(old, new)
    if not keys:
        raise BaselineError(f"{folder}: has nothing that fits all of these options")
    words = ["goldformer", "baseline", "check", given, str(folder)]
    if part.threads is not None and part.threads != old.request.threads:
        words += ["--threads", str(part.threads)]
    words += ["--tf32"] if part.tf32 and not old.request.tf32 else []
    return Drift(old, new, tuple(Classifier(spec).moves(old, new, keys)), spec, shlex.join(words))


@click.group(epilog=STATUSES)
def baseline() -> None:
    """Record an implementation's results, and say later what moved.

    `check` says by how much each output moved, in what way, and why.
    """


# ── record ──


@baseline.command("record", epilog=STATUSES)
@options.ADAPTER
@click.option(
    "-o",
    "--out",
    "folder",
    type=options.FOLDER,
    required=True,
    help="The folder to write; its old content is replaced.",
)
@options.COMPONENTS
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    callback=options.split_words("float64", "float32"),
    help="float64, float32, float16, bfloat16.  [default: float64,float32]",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    callback=options.split_words("cpu"),
    help=f"{options.DEVICES_IN_WORDS} (repeatable, or a,b).  [default: cpu]",
)
@click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), default=1, show_default=True, help="Threads on the CPU."
)
@options.TF32
@options.TIMEOUT
def record_baseline(
    *,
    adapter: str,
    folder: Path,
    components: tuple[str, ...],
    dtypes: tuple[str, ...],
    devices: tuple[str, ...],
    threads: int,
    tf32: bool,
    timeout: float,
) -> int:
    """Record every output of ADAPTER for the golden cases.

    Outputs are stored bit for bit in their own dtype. The folder gets manifest.yaml, which can be read, and one file of
    arrays for each component. An interruption leaves the old content. While another record or update works in the
    folder, nothing is done (exit status 2).
    """
    spec = load_spec()
    require_known(dtypes, DTYPES, "--dtype")
    request = BaselineRequest(
        dtypes=dtypes, devices=devices, components=expand_patterns(components, spec.components, "--component"),
        threads=threads, tf32=tf32,
    )  # fmt: skip
    with contextlib.closing(load_implementation(adapter, spec, Reading(timeout=timeout))) as found, lock(folder):
        made = record(found, spec, request, partial(show_progress, what="recording"))
        if not any(entry.outputs for entry in made.entries.values()):
            ends = (entry.ended.message for entry in made.entries.values() if entry.ended)
            raise CannotRun(f"{adapter}: no call gave a result that could be recorded: {next(ends)}")
        unsteady = find_unrepeatable(found, spec, made)
        changed = save(folder, made)
    print_recording(made)
    say(f"- wrote {folder / NAME}{describe_files(changed)}")
    wanted = set(request.components or spec.components)
    left_out = [
        f"{name} is not recorded, because the file has another {owned[0]}: record it by itself, in another folder"
        for name, owned in found.doubled.items()
        if wanted.intersection(owned)
    ]
    for line in (*left_out, *describe_failed_calls(made, adapter)):
        err.print(line, style="yellow", markup=False, soft_wrap=True)
    if unsteady:
        err.print(_UNSTEADY.format(", ".join(f"{key.case} ({key.dtype}, {key.device})" for key in unsteady)))
    return OK


# ── check ──


@baseline.command("check", epilog=STATUSES)
@_ADAPTER
@click.argument("folder", metavar="DIR", type=options.FOLDER)
@_add_filters
@options.JSON
@options.MARKDOWN
@click.option("--html", type=options.FILE, help="Save a report as one HTML page, with the worst moves drawn.")
@click.option("--all", "everything", is_flag=True, help="Show every move that is not allowed, not only the worst.")
def check_baseline(
    *,
    adapter: str,
    folder: Path,
    part: Filter,
    timeout: float,
    allow: Kind,
    json: Path | None,
    markdown: Path | None,
    html: Path | None,
    everything: bool,
) -> int:
    """Say what moved since the baseline in DIR was recorded.

    Each output of each call is in a class:

    \b
    identical    bit for bit
    rounding     within the case's own tolerance
    precision    beyond it, as a lower working precision explains: TF32, float16, bfloat16
    semantic     a known mistake or an option of a convention explains it, and is named
    unexplained  no precision, mistake or option explains it
    form         another dtype or shape, new, gone, or no longer a result

    Exit status 0 means that nothing is worse than --allow.
    """  # noqa: D301 - click reads \b
    require_outputs({"--json": json, "--markdown": markdown, "--html": html}, adapter, folder / NAME)
    spec = load_spec()
    with contextlib.closing(load_implementation(adapter, spec, Reading(timeout=timeout))) as found:
        drift = measure_drift(found, spec, adapter, folder, part)
        print_drift(drift, folder, allow, everything=everything)
        fails = drift.tally.worst > allow
        if fails:
            say(suggest_update(adapter, folder))
        if json:
            save_json(json, drift_data.as_json(drift, allow))
        if markdown:
            save_text(markdown, drift_data.markdown(drift, allow))
        if html:
            save_text(html, drift_page(drift, allow))
    return FAILS if fails else OK


# ── update ──


@baseline.command("update", epilog=STATUSES)
@_ADAPTER
@click.argument("folder", metavar="DIR", type=options.FOLDER)
@_add_filters
@click.option(
    "--reason", default="", help="Why this is accepted: it is kept in manifest.yaml, and later checks say it."
)
@click.option("--dry-run", is_flag=True, help="List what would change, and write nothing.")
@click.option("--yes", is_flag=True, help="Write without asking.")
def update_baseline(
    *,
    adapter: str,
    folder: Path,
    part: Filter,
    timeout: float,
    allow: Kind,
    reason: str,
    dry_run: bool,
    yes: bool,
) -> int:
    """Accept what moved into the baseline in DIR.

    New calls are added, and calls that are gone are removed. Options such as --component restrict it. What moved is
    listed before it is written; a move that --allow allows stays as recorded, unless another output of its call moved
    further. Nothing is written if CI is set.
    """
    if not dry_run and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise CannotRun(
            "baseline update writes nothing where CI is set: run it on a machine of your own, read what it lists, "
            f"and commit {folder}; --dry-run only lists it"
        )
    spec = load_spec()
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(contextlib.closing(load_implementation(adapter, spec, Reading(timeout=timeout))))
        # The lock lasts from reading to writing. A folder that does not exist is not made for an error message.
        if not dry_run and folder.is_dir():
            stack.enter_context(lock(folder))
        drift = measure_drift(found, spec, adapter, folder, part)
        accepted = list_acceptable(drift.moves, allow)
        print_changes(accepted, drift)
        if not accepted or dry_run:
            say("nothing to change" if not accepted else "nothing was written: --dry-run")
            return OK
        if not yes and not is_interactive():
            raise CannotRun("nothing was written: there is no terminal to ask on; --yes writes without asking")
        if not yes and not click.confirm(f"Write this to {folder}?"):
            raise CannotRun("nothing was written")
        changed = save(folder, apply_moves(drift.old, drift.new, accepted, reason))
        say(f"- wrote {folder / NAME}{describe_files(changed)}")
    return OK


def is_interactive() -> bool:
    """Return True if a person can be asked on the terminal."""
    return sys.stdin.isatty()
