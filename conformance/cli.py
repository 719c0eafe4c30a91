"""The command line. Each command imports what it needs when it runs, so that --help is instant."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

_STATUSES = """
\b
Exit status: 0 conforms (or: done) · 1 fails (or: golden values moved) · 2 unusable: a bad adapter,
spec or option, or nothing was checked.
"""


_FILE = click.Path(path_type=Path, dir_okay=False)

# What several commands take.
_SPEC = click.option(
    "--spec",
    "root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Another spec folder.",
)
_COMPONENTS = click.option("--component", multiple=True, help="Only this component (repeatable, or a,b).")
_DTYPES = click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    help="float64, float32, float16, bfloat16.  [default: float64,float32]",
)
_DEVICE = click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
_THREADS = click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads on the CPU.",
)
_JOBS = click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: all cores]")
_MARKDOWN = click.option("--markdown", type=_FILE, help="Save a summary in Markdown, as a build server shows it.")


@click.group(epilog=_STATUSES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="goldformer")
def main() -> None:
    """Is your Transformer right? Golden cases, a conformance suite, and what they rest on."""
    # What stops a job on a build server is to end the processes that were started, as Ctrl-C does.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@main.command(epilog=_STATUSES)
@click.argument("adapter")
@_COMPONENTS
@click.option("--case", "cases", multiple=True, help="Only this golden case.")
@click.option(
    "--cases",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Only the cases of this YAML file of your own; golden values that it lacks are derived.",
)
@click.option("--property", "properties", multiple=True, help="Only this property.")
@_DTYPES
@_DEVICE
@click.option("--tf32", is_flag=True, help="Allow TF32 matrix products on CUDA.")
@_THREADS
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60,
    show_default=True,
    help="Seconds for each call of an implementation that is a process.",
)
@click.option("--strict", is_flag=True, help="Fail what is not implemented, and SHOULD clauses too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@_MARKDOWN
@click.option("--html", type=_FILE, help="Save a report as one HTML page, with every failing check.")
@click.option("--badge", type=_FILE, help="Save what shields.io draws a badge from.")
@click.option("-q", "--quiet", is_flag=True, help="The summary alone.")
@click.option("-v", "--verbose", is_flag=True, help="Explain every failure, not only the first ones of a component.")
def check(**options: Any) -> None:
    """Check an implementation: ADAPTER is a file, a dotted module, or a built-in name such as reference.

    "cmd: java -cp build MyAttention" is a process that speaks the protocol of docs/protocol.md, in any language.
    """
    from goldformer.conformance.commands.check import Options, run

    sys.exit(run(Options(**options)))


@main.command(epilog=_STATUSES)
@click.argument("adapters", metavar="ADAPTER…", nargs=-1, required=True)
@_COMPONENTS
@_DTYPES
@_DEVICE
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads on the CPU, of each implementation.",
)
@click.option("--jobs", type=click.IntRange(1), default=None, help="How many at once.  [default: all cores]")
@click.option("--html", type=_FILE, help="Save it all as one HTML page, with every failing check.")
@click.option("--json", type=_FILE, help="Save it all as JSON.")
@_MARKDOWN
@click.option("--badge", type=_FILE, help="Save what shields.io draws a badge from, of the first ADAPTER.")
def compare(**options: Any) -> None:
    """Compare implementations: the same checks on each ADAPTER, by component and by clause.

    What cannot be loaded is a column that says why. Exit status 0 means that all of them conform, 2 that one is
    unusable.
    """
    from goldformer.conformance.commands.compare import Options, run

    sys.exit(run(Options(**options)))


@main.command(epilog=_STATUSES)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Write nothing; fail if a stored value is not the derived one.",
)
@click.option("--case", "cases", multiple=True, help="Only this case.")
@_JOBS
@click.option("--no-cache", is_flag=True, help="Derive everything anew.")
@_SPEC
def derive(**options: Any) -> None:
    """Derive golden values in ball arithmetic and write them into their cases, or prove that none moved."""
    from goldformer.conformance.commands.derive import run

    sys.exit(run(**options))


@main.command(epilog=_STATUSES)
@click.option("--document", help="Only this document, such as java.")
@click.option("--row", help="One row in full, such as J3: every clause, case, refusal, property and erratum.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="How to print it.",
)
@click.option("--write", is_flag=True, help="Write the spec's README.md, and nothing else.")
@click.option("--check", "only_check", is_flag=True, help="Fail if the spec's README.md is out of date.")
@_SPEC
def coverage(**options: Any) -> None:
    """Show which cases, refusals and properties cover each row of the documents, and what proves each erratum.

    Exit status 1 means that nothing shows a row, a MUST or an erratum; with --check, that README.md is out of date.
    """
    from goldformer.conformance.commands.coverage import run

    sys.exit(run(**options))


@main.command(epilog=_STATUSES)
@click.argument("submissions", required=False, type=click.Path(path_type=Path))
@click.option("--assignment", type=_FILE, help="assignment.yaml: what is asked for, and what it is worth.")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of results; what is finished there is not graded again.",
)
@_JOBS
@click.option("--scheduler", metavar="ADDRESS", help="Grade on a running Dask cluster, such as tcp://10.0.0.1:8786.")
@click.option(
    "--require-isolation",
    "require",
    type=click.Choice(["process", "files", "full"]),
    help="Refuse to grade where submissions are kept apart less than so.",
)
@click.option("--seed", help="Draw the fresh cases with this seed, not with the assignment's or one of chance.")
@click.option("--only", multiple=True, metavar="ID", help="Only this submission (repeatable, or a,b).")
@click.option("--again", is_flag=True, help="Grade what is finished, too.")
@click.option("--gradescope-results", type=_FILE, help="Save results.json for Gradescope, of the only submission.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="OUT/students/ID",
    help="Run nothing: judge again what a submission answered, and say whether its grade is the same.",
)
@click.option("--json", "as_json", is_flag=True, help="The grades as one JSON object on standard output.")
def grade(**options: Any) -> None:
    """Grade a class: SUBMISSIONS is a folder of .py files, folders and zips, or an export of Gradescope.

    Each submission runs in a process of its own, kept from everything else, and is judged from outside. A single
    file, folder or zip is a class of one. Exit status 0 means that every submission has a grade, or the same one with
    --replay; 1 that grading itself failed for some, or that it is another one.
    """
    from goldformer.conformance.commands.grade import Options, run

    sys.exit(run(Options(**options)))


@main.command(epilog=_STATUSES)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def explain(name: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """Explain a case, clause, component, convention, document row, erratum, mistake or property by its id."""
    from goldformer.conformance.commands.explain import run

    sys.exit(run(name, as_json=as_json))


@main.command(epilog=_STATUSES)
@click.argument("ids", metavar="[ID]…", nargs=-1)
@click.option("--component", multiple=True, help="Only the mistakes of this component (repeatable, or a,b).")
@click.option("--matrix", is_flag=True, help="Make each mistake, run the cases that could show it, and judge them.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "float16"]),
    default="float32",
    show_default=True,
    help="In which dtype to make them; those that are mistakes in another one alone are made in that.",
)
@_JOBS
@click.option("--json", type=_FILE, help="Save the whole matrix as JSON.")
@click.option("--html", type=_FILE, help="Save the whole matrix as one HTML page.")
def mistakes(**options: Any) -> None:
    """List the known mistakes, or prove with --matrix that the suite catches them.

    The margin is by how many times the tolerance a case fails for code with the mistake. Exit status 1 means that
    a mistake is not caught, or that a case lists one and passes.
    """
    from goldformer.conformance.commands.mistakes import Options, run

    sys.exit(run(Options(**options)))


@main.command(epilog=_STATUSES)
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


@main.group(epilog=_STATUSES)
def assignment() -> None:
    """Write an assignment for a course, and check it before students see it."""


@assignment.command("new", epilog=_STATUSES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--kind",
    type=click.Choice(["attention", "embedding", "transformer"]),
    default="attention",
    show_default=True,
    help="What students write.",
)
def assignment_new(folder: Path, kind: str) -> None:
    """Write a ready assignment into DIR: what to ask, starter, adapter, solution, and a page for students."""
    from goldformer.conformance.commands.assignment import new

    sys.exit(new(folder, kind))


@assignment.command("check", epilog=_STATUSES)
@click.argument("path", metavar="ASSIGNMENT", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--solution", type=_FILE, help="The right solution.  [default: solution.py beside the assignment]")
def assignment_check(path: Path, solution: Path | None) -> None:
    """Check an assignment: its solution earns all points, on published and on fresh cases, and its starter none.

    ASSIGNMENT is its assignment.yaml. The solution and the starter are run in this process: check your own alone.
    """
    from goldformer.conformance.commands.assignment import check

    sys.exit(check(path, solution))


@main.command(epilog=_STATUSES)
@_SPEC
def lint(root: Path | None) -> None:
    """Check the spec against itself: coverage both ways, printed digits, errata, sizes, blind cases."""
    from goldformer.conformance.commands.lint import run

    sys.exit(run(root))


@main.command(epilog=_STATUSES)
@click.argument(
    "kind",
    type=click.Choice(
        [
            "assignment",
            "cases",
            "contract",
            "conventions",
            "documents",
            "errata",
            "mistakes",
            "properties",
            "protocol",
            "report",
        ]
    ),
)
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of spec file or of assignment.yaml; of protocol messages; or of check --json."""
    import json

    from goldformer.adapters.process import schema as protocol
    from goldformer.conformance import report_schema
    from goldformer.conformance.grading.assignment import AssignmentFile
    from goldformer.spec.schema import FILES

    own = {
        "assignment": AssignmentFile.model_json_schema,
        "protocol": protocol.json_schema,
        "report": report_schema.json_schema,
    }
    printed = own[kind]() if kind in own else FILES[kind].model_json_schema()
    click.echo(json.dumps(printed, indent=2, ensure_ascii=False))


@main.command(epilog=_STATUSES)
@click.argument("adapter")
@click.option(
    "--encoding",
    type=click.Choice(["base64", "numbers"]),
    default="base64",
    show_default=True,
    help="How arrays are written; numbers can be read.",
)
@_THREADS
def serve(adapter: str, encoding: str, threads: int) -> None:
    """Answer for a Python adapter in the protocol of docs/protocol.md, on standard input and output."""
    from goldformer.conformance.commands.serve import run

    sys.exit(run(adapter, "numbers" if encoding == "numbers" else "base64", threads))


@main.command(epilog=_STATUSES)
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


if __name__ == "__main__":
    main()
