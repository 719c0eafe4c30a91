"""What several commands of the command line take and say."""

from __future__ import annotations

from pathlib import Path

import click

STATUSES = """
\b
Exit status: 0 conforms (or: done) · 1 fails (or: golden values moved) · 2 unusable: a bad adapter,
spec or option, nothing was checked, or goldformer itself broke and nothing else fails.
"""


FILE = click.Path(path_type=Path, dir_okay=False)

# What several commands take.
SPEC = click.option(
    "--spec",
    "root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Another spec folder.",
)
COMPONENTS = click.option("--component", multiple=True, help="Only this component (repeatable, or a,b).")
DTYPES = click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    help="float64, float32, float16, bfloat16.  [default: float64,float32]",
)
DEVICE = click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
THREADS = click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads on the CPU.",
)
TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60,
    show_default=True,
    help="Seconds for each call of an implementation that is a process.",
)
JOBS = click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: all cores]")
MARKDOWN = click.option("--markdown", type=FILE, help="Save a summary in Markdown, as a build server shows it.")
