"""The commands that look after the spec."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from goldformer.conformance.commands._options import FILE, JOBS, SPEC, STATUSES


@click.command(epilog=STATUSES)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Write nothing; fail if a stored value is not the derived one.",
)
@click.option("--case", "cases", multiple=True, help="Only this case.")
@JOBS
@click.option("--no-cache", is_flag=True, help="Derive everything anew.")
@SPEC
def derive(**options: Any) -> None:
    """Derive golden values in ball arithmetic and write them into spec/golden, or prove that none moved."""
    from goldformer.conformance.commands.derive import run

    sys.exit(run(**options))


@click.command(epilog=STATUSES)
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
@SPEC
def coverage(**options: Any) -> None:
    """Show which cases, refusals and properties cover each row of the documents, and what proves each erratum.

    Exit status 1 means that nothing shows a row, a MUST or an erratum; with --check, that README.md is out of date.
    """
    from goldformer.conformance.commands.coverage import run

    sys.exit(run(**options))


@click.command(epilog=STATUSES)
@click.argument("ids", metavar="[ID]…", nargs=-1)
@click.option("--component", multiple=True, help="Only the mistakes of this component (repeatable, or a,b).")
@click.option("--matrix", is_flag=True, help="Make each mistake, run the cases that could show it, and judge them.")
@click.option("--write", is_flag=True, help="Write into spec/golden which of its mistakes each case kills.")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "float16"]),
    default="float32",
    show_default=True,
    help="In which dtype to make them; those that are mistakes in another one alone are made in that.",
)
@JOBS
@click.option("--json", type=FILE, help="Save the whole matrix as JSON.")
@click.option("--html", type=FILE, help="Save the whole matrix as one HTML page.")
@SPEC
def mistakes(**options: Any) -> None:
    """List the known mistakes, or prove with --matrix that the suite catches them.

    The margin is by how many times the tolerance a case fails for code with the mistake. Exit status 1 means that
    a mistake is not caught, or that a case lists one and passes.
    """
    from goldformer.conformance.commands.mistakes import Options, run

    sys.exit(run(Options(**options)))


@click.command(epilog=STATUSES)
@SPEC
def lint(root: Path | None) -> None:
    """Check the spec against itself: coverage both ways, printed digits, errata, sizes, blind cases."""
    from goldformer.conformance.commands.lint import run

    sys.exit(run(root))


@click.command(epilog=STATUSES)
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
            "golden",
            "mistakes",
            "properties",
            "protocol",
            "report",
        ]
    ),
)
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of file, for editors; of the protocol's messages; or of check --json."""
    import json

    from goldformer.adapters.process import schema as protocol
    from goldformer.conformance.grading.assignment import AssignmentFile
    from goldformer.conformance.reports import report_schema
    from goldformer.spec.schema import FILES

    own = {
        "assignment": AssignmentFile.model_json_schema,
        "protocol": protocol.json_schema,
        "report": report_schema.json_schema,
    }
    printed = own[kind]() if kind in own else FILES[kind].model_json_schema()
    click.echo(json.dumps(printed, indent=2, ensure_ascii=False))
