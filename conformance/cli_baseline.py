"""The commands that record what an implementation gives, and say later what moved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from goldformer.conformance.commands._options import COMPONENTS, DTYPES, FILE, MARKDOWN, THREADS, TIMEOUT

STATUSES = """
\b
Exit status: 0 nothing moved further than allowed (or: done) · 1 something did · 2 unusable: a bad folder,
adapter or option, or nothing was written.
"""
_FOLDER = click.Path(path_type=Path, file_okay=False)
_KINDS = ("identical", "rounding", "precision", "semantic", "unexplained", "form")
_ALLOW = click.option(
    "--allow",
    type=click.Choice(_KINDS),
    default="rounding",
    show_default=True,
    help="The worst class of a move that is no failure.",
)
_CHOSEN = (
    COMPONENTS,
    click.option("--case", multiple=True, help="Only this case."),
    click.option("--dtype", multiple=True, help="Only this dtype of those recorded."),
    click.option("--device", multiple=True, help="Only this device of those recorded."),
    click.option("--threads", type=click.IntRange(1), default=None, help="Threads on the CPU.  [default: as recorded]"),
    TIMEOUT,
)


def _chosen(command: Any) -> Any:
    """Give a command the options that choose a part of a baseline."""
    for option in reversed(_CHOSEN):
        command = option(command)
    return command


def _part(options: dict[str, Any]) -> Any:
    """The part of a baseline that the options choose, which are taken out."""
    from goldformer.conformance.commands.baseline_part import Chosen

    return Chosen.of(*(options.pop(name) for name in ("component", "case", "dtype", "device")))


@click.group(epilog=STATUSES)
def baseline() -> None:
    """Record what an implementation gives, and say later what moved, by how much, in what way and why."""


@baseline.command("record", epilog=STATUSES)
@click.argument("adapter")
@click.option("--out", "folder", type=_FOLDER, required=True, help="The folder to write; what it holds is replaced.")
@COMPONENTS
@DTYPES
@click.option("--device", "devices", multiple=True, help="cpu, cuda or cuda:N (repeatable, or a,b).  [default: cpu]")
@click.option("--drawn", type=click.IntRange(0), default=0, help="Drawn calls of realistic size for each component.")
@THREADS
@click.option("--tf32", is_flag=True, help="Allow TF32 matrix products on CUDA.")
@TIMEOUT
def record_baseline(**options: Any) -> None:
    """Record every output that ADAPTER gives for the golden cases, in its own dtype, bit for bit.

    The folder gets manifest.yaml, to be read, and one file of arrays. An interruption leaves what it held before. While
    another record or update is at work in the folder, nothing is done (exit status 2).
    """
    from goldformer.conformance.baseline.model import Request
    from goldformer.conformance.commands._console import words
    from goldformer.conformance.commands.baseline import run_record

    request = Request(
        words(options["dtypes"]) or ("float64", "float32"), words(options["devices"]) or ("cpu",),
        words(options["component"]), options["drawn"], options["threads"], options["tf32"],
    )  # fmt: skip
    sys.exit(run_record(options["adapter"], options["folder"], request, options["timeout"]))


@baseline.command("check", epilog=STATUSES)
@click.argument("adapter")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@_ALLOW
@_chosen
@click.option(
    "--attribute",
    type=click.Path(path_type=Path),
    help="An interpreter or a virtual environment that has the old code or the old libraries: tells whose drift it is.",
)
@click.option("--old-adapter", help="The adapter as it was: tells whose drift it is, the code's or the environment's.")
@click.option("--json", type=FILE, help="Save all that moved as JSON.")
@MARKDOWN
@click.option("--html", type=FILE, help="Save a report as one HTML page, with the worst moves drawn.")
@click.option("--all", "everything", is_flag=True, help="Show every move that is not allowed, not only the worst.")
def check_baseline(**options: Any) -> None:
    """Say what moved since the baseline in DIR was recorded: each output of each call in a class.

    \b
    identical    bit for bit
    rounding     within the case's own tolerance
    precision    beyond it, as a lower working precision gives: TF32, float16, bfloat16
    semantic     a known mistake or an option of a convention gives it, and is named
    unexplained  none of these
    form         another dtype or shape, new, gone, or no result any more

    Exit status 0 means that nothing is worse than --allow.
    """  # noqa: D301 - click reads \b
    from goldformer.conformance.baseline.moves import Kind
    from goldformer.conformance.commands.baseline import CheckOptions, run_check

    chosen, allow = _part(options), Kind[options.pop("allow").upper()]
    sys.exit(run_check(CheckOptions(chosen=chosen, allow=allow, **options)))


@baseline.command("update", epilog=STATUSES)
@click.argument("adapter")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--create", is_flag=True, help="Add what is new. This alone is done when nothing else is asked for.")
@click.option("--fix", is_flag=True, help="Replace what moved further than allowed.")
@click.option("--trim", is_flag=True, help="Take away what is gone.")
@click.option("--update", is_flag=True, help="Replace all that moved.")
@_ALLOW
@_chosen
@click.option("--dry-run", is_flag=True, help="List what would change, and write nothing.")
@click.option("--yes", is_flag=True, help="Write without asking.")
def update_baseline(**options: Any) -> None:
    """Take over what moved into the baseline in DIR, as far as it is asked for by name.

    What changes is listed first. Nothing is written where CI is set.
    """
    from goldformer.conformance.baseline.moves import Kind
    from goldformer.conformance.commands.baseline_update import UpdateOptions, acts_of, run_update

    acts = acts_of({act: options.pop(act) for act in ("create", "trim", "fix", "update")})
    chosen, allow = _part(options), Kind[options.pop("allow").upper()]
    sys.exit(run_update(UpdateOptions(chosen=chosen, allow=allow, acts=acts, **options)))


@baseline.command("history", epilog=STATUSES)
@click.argument("folders", metavar="DIR…", nargs=-1, required=True, type=_FOLDER)
@click.option("--json", type=FILE, help="Save it all as JSON.")
@MARKDOWN
@click.option("--html", type=FILE, help="Save it all as one HTML page, with a plot.")
def history_of_baselines(folders: tuple[Path, ...], json: Path, markdown: Path, html: Path) -> None:
    """Line up several baselines, such as those of versions of a library: what moved since the first, by component."""
    from goldformer.conformance.commands.baseline import run_history

    sys.exit(run_history(folders, json, markdown, html))
