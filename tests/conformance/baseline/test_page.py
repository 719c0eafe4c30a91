"""docs/baselines.md is true: its adapter is recorded, changed, checked and updated as it says."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from goldformer.conformance.baseline.array_files import LARGE, SAMPLED
from goldformer.conformance.baseline.moves import KINDS
from goldformer.conformance.cli import main
from repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "baselines.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ goldformer (baseline .*?)(?:  +#.*)?$", PAGE, re.MULTILINE)


def run(command):
    return CliRunner().invoke(main, shlex.split(command))


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# my_norm\.py\n.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "baselines").mkdir()
    (tmp_path / "my_norm.py").write_text(code, encoding="utf-8")
    return tmp_path / "my_norm.py"


def test_its_commands_do_what_it_says(adapter):
    assert [command.split()[1] for command in COMMANDS] == ["record", "check", "update", "update", "check"]
    record, check, dry, update, again = COMMANDS
    assert (run(record).exit_code, run(check).exit_code) == (0, 0)
    old = adapter.read_text(encoding="utf-8")
    adapter.write_text(old.replace("1e-5", "1e-6"), encoding="utf-8")
    done = run(check)
    assert done.exit_code == 1
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in shown.splitlines():
        if line != "…":
            assert line in done.stdout.splitlines()
    assert run(dry).stdout.splitlines()[-1] == "nothing was written: --dry-run"
    assert [run(command).exit_code for command in (check, update, again)] == [1, 0, 0]


def test_its_classes_and_numbers_are_those_of_the_code():
    assert tuple(re.findall(r"^\| (\w+) \| (?!what)", PAGE, re.MULTILINE)) == KINDS
    assert f"more than {LARGE:,} numbers" in PAGE
    assert f"and {SAMPLED} of them" in PAGE
