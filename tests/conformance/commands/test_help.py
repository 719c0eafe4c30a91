"""The command line as a stranger meets it: help that is instant, and exit statuses that are written down."""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.commands import SUMMARIES

GOLDFORMER = Path(sys.executable).with_name("goldformer")


def run(*arguments):
    return subprocess.run([GOLDFORMER, *arguments], capture_output=True, text=True, timeout=60, check=False)


FOUND = {name: main.get_command(None, name) for name in main.list_commands(None)}
#: Every command as its words, also those of groups.
COMMANDS = [
    [],
    *([name] for name in FOUND),
    *([name, inner] for name, group in FOUND.items() for inner in getattr(group, "commands", ())),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "-")
def test_the_help_of_a_command_lists_its_exit_statuses(command):
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    if command and (command[1:] or not hasattr(FOUND[command[0]], "commands")):
        assert re.search(r"\n +Exit status:\n +0 +\w.*\n( +1 +\w.*\n)? +2 +bad ", result.stdout)


@pytest.mark.parametrize("name", FOUND)
def test_every_option_and_command_is_described(name):
    command = FOUND[name]
    assert command.help
    for option in command.params:
        if option.param_type_name == "option":
            assert option.help


@pytest.mark.parametrize("name", FOUND)
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name):
    assert " ".join(FOUND[name].help.split("\n\n")[0].split()) == SUMMARIES[name]


@pytest.mark.parametrize("words", [[], ["baseline"], ["assignment"]], ids=" ".join)
def test_summaries_are_whole_sentences(words):
    text = CliRunner().invoke(main, [*words, "--help"], terminal_width=80).stdout
    listed = re.split("\nCommands:|\nCheck:", text)[1].partition("Exit status")[0]
    assert listed.strip()
    assert "..." not in listed
    assert "…" not in listed


def test_the_installed_command_is_this_one():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^  check  ", done.stdout, re.MULTILINE)


def test_help_imports_nothing_heavy():
    ours = ["goldformer.spec", "goldformer.adapters"]
    heavy = ["numpy", "torch", "pydantic", "pytest", "hypothesis", "rich", "yaml", *ours]
    code = (
        "import sys; from goldformer.conformance.cli import main; main(['--help'], standalone_mode=False);"
        f"print('imported', [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "imported []"


def test_help_is_instant():
    """The bar is a tenth of a second, which Python with click nearly takes by itself."""

    def measure(*words):
        # Processor time: the other work of this machine is not counted.
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, capture_output=True, timeout=60, check=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime

    pairs = [(measure(GOLDFORMER, "--help"), measure(sys.executable, "-c", "import click")) for _ in range(5)]
    of_help, of_click = map(statistics.median, zip(*pairs, strict=True))
    assert 0 < of_help < 2 * of_click
