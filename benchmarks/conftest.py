"""The fixtures of the benchmarks, and the table of their results."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from goldformer.adapters import find_adapter
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.reports.comparison import describe_system
from goldformer.conformance.selection import Numerics
from goldformer.spec import Spec, load_spec


@pytest.fixture(scope="session")
def spec() -> Spec:
    """Load the spec once."""
    return load_spec()


@pytest.fixture(scope="session")
def bench_of(spec: Spec) -> Callable[..., Bench]:
    """Return a function that finds an adapter by its name, for float32."""

    def make(name: str) -> Bench:
        adapter = find_adapter(name, spec)
        Numerics().apply(adapter.arrays)
        return Bench(spec, adapter, "float32", "cpu")

    return make


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file of the table."""
    parser.addoption("--table", type=Path, help="write the results as a table in Markdown")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table once everything was timed."""
    path: Path | None = session.config.getoption("--table")
    run: Any = getattr(session.config, "_benchmarksession", None)
    timed = [one for one in run.benchmarks if one.stats.data] if run else []
    if path and timed:
        path.write_text(table(timed), encoding="utf-8")


def table(timed: list[Any]) -> str:
    """Write a row for each benchmark: its subject, its median, and the ratio to the benchmark that it names."""
    medians = {one.name: one.stats.median for one in timed}
    lines = ["| what | median | goal | against |", "|---|---:|---:|---|"]
    for one in timed:
        per, goal = one.extra_info.get("per", 1), one.extra_info.get("goal")
        against = one.extra_info.get("against")
        ratio = f"{medians[one.name] / medians[against]:.2f} × {_what(timed, against)}" if against in medians else ""
        facts = [ratio, one.extra_info.get("note", "")]
        each = f"{_time(one.stats.median / per - one.extra_info.get('less', 0))}{' each' if per > 1 else ''}"
        aim = _time(goal) if goal else ""
        lines.append(f"| {one.extra_info['what']} | {each} | {aim} | {'; '.join(filter(None, facts))} |")
    return "\n".join([*lines, "", machine(), ""])


def _what(timed: list[Any], name: str) -> str:
    return str(next(one.extra_info["what"] for one in timed if one.name == name))


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def machine() -> str:
    """Describe the machine in one line."""
    facts = describe_system() | {"torch": version("torch")}
    return f"Measured on {os.cpu_count()} cores: {', '.join(f'{name} {value}' for name, value in facts.items())}."
