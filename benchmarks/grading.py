"""The speed of grading a class: `goldformer grade`, against a fresh pytest process for each submission.

Run with `python -m benchmarks.grading`. The submissions are the ready attention assignment's solution and the same
with mistakes that students make, in turn. Both ways run on the same machine, one after the other; each of them begins
with nothing imported. Every way is timed from its start to its end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from goldformer.conformance.commands.assignment import READY, read_ready

#: The difference of each student from the solution: a text in it, and its replacement.
MISTAKES: Final[tuple[tuple[str, str], ...]] = (
    ("", ""),
    (" / math.sqrt(query.shape[-1])", ""),
    ("scores - scores.max(dim=-1, keepdim=True).values", "scores"),
    (".tril()", ".triu()"),
    ("masked_fill(~mask", "masked_fill(mask"),
    ("(ids != pad_id)[:, None, None, :]", "(ids != pad_id)"),
    ("heads.transpose(1, 2).flatten(2)", "heads.reshape(*query.shape)"),
    ("math.sqrt(query.shape[-1])", "query.shape[-1]"),
    ("powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=-2, keepdim=True)"),
    ("self.w_o(heads", "(heads"),
    ("return weights @ value, weights", "raise NotImplementedError"),
    ("    weights = softmax(scores)\n", "    weights = softmax(scores)\n    weights = 1.01 * weights\n"),
    ("scores.masked_fill(~mask, -math.inf)", "scores + mask * 1e-9"),
    ("import torch\n", "import torch\nimport a_module_that_is_not_there\n"),
)


def write_class(folder: Path, count: int) -> list[Path]:
    """Write a number of submissions, no two of them equal."""
    solution = (READY / "attention" / "solution.py").read_text(encoding="utf-8")
    folder.mkdir()
    written = []
    for number in range(count):
        right, wrong = MISTAKES[number % len(MISTAKES)]
        assert right in solution, f"the solution has no {right!r}"
        path = folder / f"student{number:04}.py"
        path.write_text(f"# student {number}\n{solution.replace(right, wrong)}", encoding="utf-8")
        written.append(path)
    return written


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a command: wall-clock seconds, processor seconds, and its own memory in MiB."""

    seconds: float
    cpu: float
    memory: float


def cost(words: list[str], place: Path, tell: Callable[[str], None] = lambda _: None) -> Cost:
    """Run a command, whatever its status is, with all that it starts."""
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": _path(place)}
    with subprocess.Popen(words, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tell(line)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def pytest_each(submissions: list[Path], folder: Path, components: str) -> Cost:
    """Run one pytest process for each submission."""
    total = Cost(0.0, 0.0, 0.0)
    for submission in submissions:
        place = folder / submission.stem
        place.mkdir(parents=True)
        shutil.copy(submission, place / "submission.py")
        shutil.copy(READY / "attention" / "adapter.py", place)
        words = [sys.executable, "-m", "pytest", "--pyargs", "goldformer.conformance", "--adapter", "adapter.py"]
        one = cost([*words, "--component", components, "-q", "-p", "no:cacheprovider"], place)
        total = Cost(total.seconds + one.seconds, total.cpu + one.cpu, max(total.memory, one.memory))
    return total


def _path(place: Path) -> str:
    return os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))


def grade(submissions: Path, out: Path, jobs: int, assignment: Path) -> tuple[Cost, float]:
    """Run `goldformer grade`; also return the seconds between the first grade and the last."""
    words = [sys.executable, "-m", "goldformer.conformance.cli", "grade", str(submissions), "--out", str(out)]
    stamps: list[float] = []

    def tell(line: str) -> None:
        if line.startswith("["):
            stamps.append(time.perf_counter())

    whole = cost([*words, "--assignment", str(assignment), "--jobs", str(jobs)], submissions.parent, tell)
    if len(stamps) != len([*submissions.iterdir()]):
        raise click.ClickException("not every submission was graded")
    return whole, stamps[-1] - stamps[0]


@click.command()
@click.argument("count", type=click.IntRange(2), default=20)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes that grade.")
@click.option("--pytest", "sample", type=int, default=len(MISTAKES), show_default=True, help="How many pytest runs.")
@click.option("--properties", is_flag=True, help="Let properties count, as the suite runs them.")
def main(count: int, jobs: int, sample: int, properties: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """Grade COUNT submissions, and run pytest on the first of them."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "assignment").mkdir()
        for name, data in read_ready("attention").items():
            (place / "assignment" / name).write_bytes(data)
        assignment = place / "assignment" / "assignment.yaml"
        if properties:
            text = assignment.read_text(encoding="utf-8").replace("scaled_dot_product_attention: 35",
                "scaled_dot_product_attention: {points: 35, properties: 1}").replace("softmax: 10",
                "softmax: {points: 10, properties: 1}").replace("multi_head_attention: 35",
                "multi_head_attention: {points: 35, properties: 1}")  # fmt: skip
            assignment.write_text(text, encoding="utf-8")
        submissions = write_class(place / "class", count)
        whole, between = grade(place / "class", place / "out", jobs, assignment)
        rate, steady = 60 * count / whole.seconds, 60 * (count - 1) / between
        print(
            f"goldformer grade --jobs {jobs}: {count} submissions in {whole.seconds:.1f} s, {rate:.0f} a minute, "
            f"{steady:.0f} a minute once it grades; {whole.cpu / count:.2f} s of processors each",
            flush=True,
        )
        if sample:
            components = "softmax,scaled_dot_product_attention,causal_mask,padding_mask,multi_head_attention"
            chosen = submissions[:sample]
            each = pytest_each(chosen, place / "pytest", components)
            per_minute = 60 * len(chosen) / each.seconds
            print(
                f"a pytest process each: {len(chosen)} submissions in {each.seconds:.1f} s, {per_minute:.1f} a minute; "
                f"{each.cpu / len(chosen):.2f} s of processors each"
            )
            print(
                f"ratio: {rate / per_minute:.1f} with starting, {steady / per_minute:.1f} without; "
                f"of processor time {each.cpu / len(chosen) / (whole.cpu / count):.1f}"
            )


if __name__ == "__main__":
    main()
