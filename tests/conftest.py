"""Fixtures that all tests share: the spec, benches, and small adapters written on the spot."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_limits

from controls import ROOM, TALLY, Control, Tally, judge, tallies
from goldformer.adapters import find_adapter
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Verdict
from goldformer.spec import ROOT, Spec, load_spec
from repository import REPOSITORY
from small_spec import write_small_spec

# The arrays are small: more threads only wait for each other, a hundredfold on busy cores.
torch.set_num_threads(1)
threadpool_limits(1)

# Tests of a build server set it themselves: all others, and the processes they start, see a machine of one's own.
os.environ.pop("CI", None)
# Texts are as wide as where there is no terminal.
os.environ["COLUMNS"] = "100"

# A shell that runs something in the background has it ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest_plugins = ["sampling"]


def pytest_collection_finish() -> None:
    """Keep what lives to the end, spec and tests, out of the garbage collector: it took a quarter of the time."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 1000)


@pytest.fixture(scope="session")
def spec() -> Spec:
    return load_spec()


@pytest.fixture(scope="session")
def golden_cases(spec: Spec) -> Callable[..., int]:
    """The number of cases of a component with golden values, without advice and, if asked, without gradients."""

    def count(component: str, *, gradients: bool = True) -> int:
        cases = [case for case in spec.cases_of(component) if case.error is None and not case.shape_only]
        return sum(not spec.is_advice(case) and (gradients or case.cotangent is None) for case in cases)

    return count


@pytest.fixture
def unread_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send grading processes a spec of which nothing has been read, as a command does: all of it takes a second."""
    monkeypatch.setattr("goldformer.conformance.grading.pool.load_spec", load_spec.__wrapped__)


@pytest.fixture
def bench(spec: Spec) -> Callable[..., Bench]:
    """A bench for an adapter by name, or by the source of a module."""

    def make(adapter: str, dtype: str = "float32", *, strict: bool = False) -> Bench:
        return Bench(spec, find_adapter(adapter, spec), dtype, "cpu", Policy(strict=strict))

    return make


@pytest.fixture
def adapter_file(tmp_path: Path) -> Callable[[str], str]:
    """The path of an adapter with the given source."""

    def write(source: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.write_text(source, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def broken_reference(tmp_path: Path) -> Callable[..., str]:
    """The path of an adapter of a copy of the reference, in which files have new text for old: file, old, new, …."""

    def edited(*edits: str) -> str:
        changes = list(zip(edits[::3], edits[1::3], edits[2::3], strict=True))
        for file, _, _ in changes:
            assert (REPOSITORY / "reference_impl" / file).is_file(), f"the reference has no {file}"
        # A name of its own for each test: a package that was imported once is not read again.
        package = f"broken_{tmp_path.name}"
        target = tmp_path / package
        target.mkdir()
        for source in (REPOSITORY / "reference_impl").glob("*.py"):
            text = source.read_text(encoding="utf-8").replace("goldformer.reference_impl", package)
            for file, old, new in changes:
                if file == source.name:
                    assert text.count(old) == 1, f"the reference no longer says {old!r}"
                    text = text.replace(old, new)
            (target / source.name).write_text(text, encoding="utf-8")
        adapter = (REPOSITORY / "adapters" / "builtin" / "reference.py").read_text(encoding="utf-8")
        adapter = adapter.replace("from goldformer import reference_impl as ref", f"import {package} as ref")
        adapter = adapter.replace("goldformer.reference_impl", package).replace('= version("goldformer")', '= "broken"')
        path = tmp_path / "student.py"
        path.write_text(adapter, encoding="utf-8")
        return str(path)

    return edited


@pytest.fixture
def verdicts_of(spec: Spec) -> Callable[..., list[Verdict]]:
    """The verdicts of all golden cases of some components."""

    def run(bench: Bench, *components: str) -> list[Verdict]:
        return [check_case(case, bench) for case in plan(spec, components)]

    return run


@pytest.fixture
def acquitted(spec: Spec, request: pytest.FixtureRequest) -> Callable[[Control, str], None]:
    """Assert that the suite accuses a control of nothing in a dtype, and leaves it room; its runs are counted."""

    def check(control: Control, dtype: str) -> None:
        verdicts = list(judge(spec, control, dtype))
        counted = tallies(control, verdicts)
        for (component, _), tally in counted.items():
            request.node.user_properties.append((TALLY, [component, dtype, *vars(tally).values()]))
        assert [(v.check, v.message) for v in verdicts if v.bad] == []
        assert {component for component, _ in counted} == spec.contracts.keys() & control.functions.keys()
        assert {tally.where: tally.largest for tally in counted.values() if tally.largest > ROOM} == {}

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many runs of correct code there were, how many of them were accused, and how near the others came."""
    counted: dict[tuple[str, str], Tally] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ():
                if name == TALLY:
                    component, dtype, *tally = value
                    counted.setdefault((component, dtype), Tally()).add(Tally(*tally))
    if not counted:
        return
    whole = Tally()
    terminalreporter.section("controls")
    for (component, dtype), tally in sorted(counted.items()):
        whole.add(tally)
        if terminalreporter.verbosity > 0:
            said = f"{tally.runs:6} runs, {tally.alarms} accused, largest ratio {tally.largest:.2f}"
            terminalreporter.write_line(f"{component:30} {dtype:8} {said} ({tally.where})")
    said = f"{whole.runs} runs of correct code, {whole.alarms} accused"
    terminalreporter.write_line(f"{said}; largest ratio {whole.largest:.2f} ({whole.where})")


@pytest.fixture
def spec_copy(tmp_path: Path) -> Path:
    """The spec's data in a folder of its own, to be spoilt."""
    target = tmp_path / "spec"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns("*.py", "__pycache__", "oracle"))
    return target


@pytest.fixture
def small_spec(tmp_path: Path) -> Path:
    """A made-up spec of one component in a folder of its own, in which everything is covered."""
    root = tmp_path / "small"
    write_small_spec(root)
    return root
