"""What the tests share: the spec, benches, and small adapters written on the spot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from goldformer.adapters import find_adapter
from goldformer.conformance.engine import Bench, check_case, plan
from goldformer.conformance.verdict import Verdict
from goldformer.spec import ROOT, Spec, load_spec

# The arrays are small: more threads only wait for each other, a hundredfold on busy cores.
torch.set_num_threads(1)

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def spec() -> Spec:
    return load_spec()


@pytest.fixture
def bench(spec: Spec) -> Callable[..., Bench]:
    """A bench for an adapter by name, or by the source of a module."""

    def make(adapter: str, dtype: str = "float32", *, strict: bool = False) -> Bench:
        return Bench(spec, find_adapter(adapter, spec), dtype, "cpu", strict)

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
def broken_reference(tmp_path: Path) -> Callable[[str, str, str], str]:
    """The path of an adapter of a copy of the reference in which one file has new text for old."""

    def edited(file: str, old: str, new: str) -> str:
        # A name of its own for each test: a package that was imported once is not read again.
        package = f"broken_{tmp_path.name}"
        target = tmp_path / package
        target.mkdir()
        for source in (REPOSITORY / "reference_impl").glob("*.py"):
            text = source.read_text(encoding="utf-8").replace("goldformer.reference_impl", package)
            if source.name == file:
                assert text.count(old) == 1, f"the reference no longer says {old!r}"
                text = text.replace(old, new)
            (target / source.name).write_text(text, encoding="utf-8")
        adapter = (REPOSITORY / "adapters" / "builtin" / "reference.py").read_text(encoding="utf-8")
        adapter = adapter.replace(
            "from goldformer import __version__, reference_impl", f"import {package} as reference_impl"
        )
        path = tmp_path / "student.py"
        path.write_text(adapter.replace("= __version__", '= "broken"'), encoding="utf-8")
        return str(path)

    return edited


@pytest.fixture
def verdicts_of(spec: Spec) -> Callable[..., list[Verdict]]:
    """The verdicts of all golden cases of some components."""

    def run(bench: Bench, *components: str) -> list[Verdict]:
        return [check_case(case, bench) for case in plan(spec, components)]

    return run


@pytest.fixture
def spec_copy(tmp_path: Path) -> Path:
    """The spec's data in a folder of its own, to be spoilt."""
    target = tmp_path / "spec"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns("*.py", "__pycache__", "oracle"))
    return target
