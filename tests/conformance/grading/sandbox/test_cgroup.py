"""A control group of version 2 has the limits of a submission, and says whether the kernel ended it for memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldformer.conformance.grading.sandbox import Limits
from goldformer.conformance.grading.sandbox import _cgroup as cgroup


@pytest.mark.parametrize(("killed", "out_of_memory"), [("0", False), ("2", True)])
def test_a_group_limits_memory_and_processes(
    killed: str, *, out_of_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_EMPTYING", 0.0)  # these are ordinary files, with which no folder can be removed
    group = cgroup.Group(tmp_path / "one")
    group.make(Limits(memory=3, processes=5))
    written = {path.name: path.read_text() for path in group.folder.iterdir()}
    assert written == {"memory.max": str(3 << 20), "memory.swap.max": "0", "pids.max": "5"}
    (group.folder / "memory.events").write_text(f"low 0\noom 1\noom_kill {killed}\noom_group_kill 0\n")
    assert group.end() is out_of_memory
