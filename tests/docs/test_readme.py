"""The README is a page, and its example is true: the class fails as it says, and conforms once it is fixed."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from repository import REPOSITORY
from written_pages import GAP, must_show

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SCORES = "scores = q @ k.transpose(-2, -1)\n"
#: The longest that a first page may be.
LINES = 100


@pytest.fixture
def model(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# my_model\.py\n.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my_model.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_the_class_fails_as_the_readme_says(model):
    result = CliRunner().invoke(main, ["check", f"{model.name}:MultiHeadAttention"])
    assert result.exit_code == 1, result.output
    (shown,) = re.findall(r"\$ goldformer check my_model\.py:MultiHeadAttention\n(.*?)```", README, flags=re.DOTALL)
    must_show(result.output, [GAP, *shown.splitlines()], "README.md")


def test_with_the_scale_it_conforms(model):
    source = model.read_text(encoding="utf-8")
    assert source.count(SCORES) == 1
    model.write_text(source.replace(SCORES, SCORES[:-1] + " / q.size(-1) ** 0.5\n"), encoding="utf-8")
    result = CliRunner().invoke(main, ["check", f"{model.name}:MultiHeadAttention"])
    assert result.exit_code == 0, result.output
    assert "conforms (77 of 89 cases apply)" in result.output


def test_it_begins_with_a_check_and_the_make_lines_stand_under_develop():
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)
    develop = README.partition("## Develop\n")[2]
    assert headings[0] == "Check yours"
    assert re.findall(r"^\$ make (\w+)", develop, re.MULTILINE)[:2] == ["conformance", "test"]


def test_it_is_a_page():
    assert len(README.splitlines()) <= LINES


def test_its_numbers_are_true(spec):
    assert f"{len(spec.mistakes)} [known mistakes]" in README
    table = (REPOSITORY / "docs" / "implementations.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert f"[what {table.count('| [')} adapters pass]" in README
