"""The commands that write an assignment and grade a class."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from goldformer.conformance.commands._options import FILE, JOBS, STATUSES


@click.command(
    epilog="""
\b
Exit status: 0 every submission has a grade (or, with --replay: the same grade) · 1 grading itself failed for
some (another grade) · 2 unusable: a bad assignment or option, no submissions, or no isolation · 130 stopped.
"""
)
@click.argument("submissions", required=False, type=click.Path(path_type=Path))
@click.option("--assignment", type=FILE, help="assignment.yaml: what is asked for, and what it is worth.")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of results; what is finished there is not graded again.",
)
@JOBS
@click.option("--scheduler", metavar="ADDRESS", help="Grade on a running Dask cluster, such as tcp://10.0.0.1:8786.")
@click.option(
    "--require-isolation",
    "require",
    type=click.Choice(["process", "files", "full"]),
    help="Refuse to grade where submissions are kept apart less than so.",
)
@click.option("--seed", help="Draw the fresh cases with this seed, not with the assignment's or one of chance.")
@click.option(
    "--solution",
    type=FILE,
    help="The right solution: submissions have to return every output that it returns."
    "  [default: solution.py beside the assignment]",
)
@click.option("--only", multiple=True, metavar="ID", help="Only this submission (repeatable, or a,b).")
@click.option("--again", is_flag=True, help="Grade what is finished, too.")
@click.option("--gradescope-results", type=FILE, help="Save results.json for Gradescope, of the only submission.")
@click.option("--github-output", type=FILE, help="Append `result=…` for GitHub Classroom's reporter to $GITHUB_OUTPUT.")
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
    file, folder or zip is a class of one.
    """
    from goldformer.conformance.commands.grade import Options, run

    sys.exit(run(Options(**options)))


@click.group(epilog=STATUSES)
def assignment() -> None:
    """Write an assignment for a course, and check it before students see it."""


@assignment.command("new", epilog=STATUSES)
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


@assignment.command(
    "check",
    epilog="""
\b
Exit status: 0 the solution earns everything and the starter nothing · 1 not so · 2 unusable: an assignment, adapter or
solution that cannot be read.
""",
)
@click.argument("path", metavar="ASSIGNMENT", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--solution", type=FILE, help="The right solution.  [default: solution.py beside the assignment]")
def assignment_check(path: Path, solution: Path | None) -> None:
    """Check an assignment: its solution earns all points, on published and on fresh cases, and its starter none.

    ASSIGNMENT is its assignment.yaml. The solution and the starter are run in this process: check your own alone.
    """
    from goldformer.conformance.commands.assignment import check

    sys.exit(check(path, solution))
