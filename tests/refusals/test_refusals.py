"""The loader of the spec refuses what is wrong, naming file, line and field: every entry of the table."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from goldformer.spec import ROOT
from refusal_table import KEPT, list_said, read_table, spoil
from spoiling import keep, load


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec to be spoilt, with the case files that are quick to load."""
    target = tmp_path_factory.mktemp("spec") / "spec"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns("*.py", "__pycache__", "oracle"))
    keep(target, KEPT)
    assert {case.component for case in load(target).cases.values()} == set(KEPT)
    return target


@pytest.mark.parametrize("entry", read_table(), ids=lambda entry: entry["what"])
def test_what_is_wrong_is_refused_at_its_line(copy: Path, entry: dict[str, Any]) -> None:
    with spoil(copy, entry):
        assert list_said(copy, entry) == entry["said"]
