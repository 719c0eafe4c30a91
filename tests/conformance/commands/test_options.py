"""The options that several commands take mean the same in each of them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main

#: The commands with --component or --case, with the arguments that they need.
TAKE_COMPONENTS = {
    "compare": ["compare", "textbook"],
    "export": ["export", "calls"],
    "new": ["new", "mine.py"],
    "mistakes": ["mistakes"],
    "record": ["baseline", "record", "textbook", "-o", "base"],
}
TAKE_CASES = {"derive": ["derive", "--check"]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, words)


@pytest.mark.parametrize("command", TAKE_COMPONENTS.values(), ids=TAKE_COMPONENTS)
def test_a_component_may_be_a_pattern(run, command):
    assert run(*command, "-c", "soft*,one_*").exit_code == 0
    refused = run(*command, "-c", "zz*")
    assert (refused.exit_code, refused.stderr) == (2, "goldformer: --component zz*: nothing fits this pattern\n")


@pytest.mark.parametrize("command", TAKE_CASES.values(), ids=TAKE_CASES)
def test_a_case_may_be_a_pattern(run, command):
    assert run(*command, "-k", "sm-one-*").exit_code == 0
    refused = run(*command, "-k", "zz-*")
    assert (refused.exit_code, refused.stderr) == (2, "goldformer: --case zz-*: nothing fits this pattern\n")


def test_a_part_of_a_baseline_may_be_a_pattern(run):
    assert run("baseline", "record", "textbook", "-o", "base", "-c", "soft*,one_*").exit_code == 0
    checked = run("baseline", "check", "textbook", "base", "-c", "soft*", "-k", "sm-one-*")
    assert checked.exit_code == 0
    assert "softmax " in checked.stdout
    assert "one_hot" not in checked.stdout
    refused = run("baseline", "check", "textbook", "base", "-k", "zz-*")
    assert (refused.exit_code, refused.stderr) == (2, "goldformer: --case zz-*: nothing fits this pattern\n")


def test_json_on_standard_output_silences_only_its_own_command(run):
    """A notebook that runs two commands in one process saw nothing of the second one."""
    assert run("check", "textbook", "-c", "softmax", "--json", "-").stdout.startswith("{")
    assert run("new", "mine.py").stdout.startswith("wrote mine.py")


def test_every_command_with_a_component_or_a_case_is_tried_here():
    def walk(command, *words):
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, *words, name)
        if {"components", "cases"} & {parameter.name for parameter in command.params}:
            yield " ".join(words)

    found = {name for top in main.list_commands(None) for name in walk(main.get_command(None, top), top)}
    commands = [*TAKE_COMPONENTS.values(), *TAKE_CASES.values()]
    tried = {" ".join(words[: 1 + (words[0] == "baseline")]) for words in commands}
    assert found - tried == {"check", "baseline check", "baseline update"}
