"""The command line. Each command imports what it needs when it runs, so that --help is instant."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from goldformer.conformance import cli_baseline, cli_grading, cli_spec
from goldformer.conformance.commands._options import (
    COMPONENTS,
    DEVICE,
    DTYPES,
    FILE,
    MARKDOWN,
    STATUSES,
    THREADS,
    TIMEOUT,
)


class _Commands(click.Group):
    """The commands; a fault in the spec ends each of them with its message, at whatever point the file is read."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            from goldformer.spec.errors import SpecError

            if not isinstance(error, SpecError):
                raise
            from goldformer.conformance.commands._console import unusable

            sys.exit(unusable(str(error)))


@click.group(
    cls=_Commands, epilog=STATUSES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="goldformer")
def main() -> None:
    """Is your Transformer right? Golden cases, a conformance suite, and what they rest on."""
    # What stops a job on a build server is to end the processes that were started, as Ctrl-C does.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@main.command(epilog=STATUSES)
@click.argument("adapter")
@COMPONENTS
@click.option("--case", "cases", multiple=True, help="Only this golden case.")
@click.option(
    "--cases",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Only the cases of this YAML file of your own; golden values that it lacks are derived.",
)
@click.option("--property", "properties", multiple=True, help="Only this property.")
@DTYPES
@DEVICE
@click.option("--tf32", is_flag=True, help="Allow TF32 matrix products on CUDA.")
@THREADS
@TIMEOUT
@click.option("--strict", is_flag=True, help="Fail what is not implemented, and SHOULD clauses too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@MARKDOWN
@click.option("--html", type=FILE, help="Save a report as one HTML page, with every failing check.")
@click.option("--badge", type=FILE, help="Save what shields.io draws a badge from.")
@click.option("-q", "--quiet", is_flag=True, help="The summary alone.")
@click.option("-v", "--verbose", is_flag=True, help="Explain every failure, not only the first ones of a component.")
def check(**options: Any) -> None:
    """Check an implementation: ADAPTER is a file, a dotted module, or a built-in name such as reference.

    "cmd: java -cp build MyAttention" is a process that speaks the protocol of docs/protocol.md, in any language.
    """
    from goldformer.conformance.commands.check import Options, run

    sys.exit(run(Options(**options)))


@main.command(epilog=STATUSES)
@click.argument("adapters", metavar="ADAPTER…", nargs=-1, required=True)
@COMPONENTS
@DTYPES
@DEVICE
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads on the CPU, of each implementation.",
)
@TIMEOUT
@click.option("--jobs", type=click.IntRange(1), default=None, help="How many at once.  [default: all cores]")
@click.option("--html", type=FILE, help="Save it all as one HTML page, with every failing check.")
@click.option("--json", type=FILE, help="Save it all as JSON.")
@MARKDOWN
@click.option("--badge", type=FILE, help="Save what shields.io draws a badge from, of the first ADAPTER.")
def compare(**options: Any) -> None:
    """Compare implementations: the same checks on each ADAPTER, by component and by clause.

    What cannot be loaded is a column that says why. Exit status 0 means that all of them conform, 2 that one is
    unusable.
    """
    from goldformer.conformance.commands.compare import Options, run

    sys.exit(run(Options(**options)))


@main.command(epilog=STATUSES)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def explain(name: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """Explain a case, clause, component, convention, document row, erratum, mistake or property by its id."""
    from goldformer.conformance.commands.explain import run

    sys.exit(run(name, as_json=as_json))


@main.command(epilog=STATUSES)
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--arrays",
    type=click.Choice(["torch", "numpy"]),
    default="torch",
    show_default=True,
    help="What you compute with.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def new(path: Path, arrays: str, force: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """Write a commented adapter to start from; it runs at once and tells what is missing."""
    from goldformer.conformance.commands.new import run

    sys.exit(run(path, arrays, force=force))


@main.command(epilog=STATUSES)
@click.argument("adapter")
@click.option(
    "--encoding",
    type=click.Choice(["base64", "numbers"]),
    default="base64",
    show_default=True,
    help="How arrays are written; numbers can be read.",
)
@THREADS
def serve(adapter: str, encoding: str, threads: int) -> None:
    """Answer for a Python adapter in the protocol of docs/protocol.md, on standard input and output."""
    from goldformer.conformance.commands.serve import run

    sys.exit(run(adapter, "numbers" if encoding == "numbers" else "base64", threads))


@main.command(epilog=STATUSES)
@click.argument("adapter")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=10,
    show_default=True,
    help="Seconds for each call.",
)
def smoke(adapter: str, timeout: float) -> None:
    """Call every component of an implementation once: does the plumbing work? The mathematics is not judged."""
    from goldformer.conformance.commands.smoke import run

    sys.exit(run(adapter, timeout))


for _command in (
    cli_baseline.baseline,
    cli_grading.assignment,
    cli_grading.grade,
    cli_spec.coverage,
    cli_spec.derive,
    cli_spec.lint,
    cli_spec.mistakes,
    cli_spec.schema,
):
    main.add_command(_command)


if __name__ == "__main__":
    main()
