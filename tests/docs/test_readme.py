"""The examples in README are true: its adapter conforms, and the mistake it makes looks as it says."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from repository import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SCALE = " / math.sqrt(query.shape[-1])"


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# my_adapter\.py\n.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my_adapter.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_the_adapter_of_the_readme_conforms(adapter):
    result = CliRunner().invoke(main, ["check", "my_adapter.py", "--dtype", "float64,float32,float16,bfloat16"])
    assert result.exit_code == 0, result.output


def test_without_the_scale_it_fails_as_the_readme_says(adapter):
    source = adapter.read_text(encoding="utf-8")
    assert source.count(SCALE) == 1
    adapter.write_text(source.replace(SCALE, ""), encoding="utf-8")
    result = CliRunner().invoke(main, ["check", "my_adapter.py", "--dtype", "float32"])
    assert result.exit_code == 1
    (shown,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    for line in shown.splitlines():
        if line.strip() and line.strip() != "…":
            assert line in result.output


def test_the_first_screen_has_the_two_commands():
    screen = README.splitlines()[:12]
    assert any("make conformance" in line for line in screen)
    assert any("make test" in line for line in screen)
