"""The written pages of the site are true: their code, YAML and commands run, and their links hold on GitHub."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from urllib.parse import unquote

import click
import pytest
from click.testing import CliRunner

from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from goldformer.spec import ROOT
from goldformer.spec.case_schema import CaseModel, CasesFile
from goldformer.spec.goldenfile import GoldenArrayModel, GoldenCaseModel, GoldenFileModel, GoldenStatisticsModel
from goldformer.spec.making.readme import anchor
from repository import REPOSITORY
from written_pages import BLOCK, GAP, blocks, commands, must_show

DOCS = REPOSITORY / "docs"
PAGES = (
    "index",
    "tutorial",
    "llama",
    "check",
    "read-a-failure",
    "python",
    "assert",
    "infer",
    "trace",
    "bridges",
    "exit-status",
    "values",
    "tolerances",
    "cases",
    "extend",
    "ci",
)


def text_of(page):
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def run(words, folder):
    """The exit status and the output of a command that the pages use."""
    # The pretend device must be there before the first gradient of a process, and other tests have computed some.
    if words[0] == "goldformer" and "pretend" not in words:
        with forget_modules(folder):
            result = CliRunner().invoke(main, words[1:])
        return result.exit_code, result.output
    if words[0] == "python":
        _, name = words
        return run_file(name, folder)
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def run_file(name, folder):
    """The exit status and the output of a file that is run as a program."""
    output = io.StringIO()
    with forget_modules(folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        sys.path.insert(0, str(folder))  # as Python does
        try:
            runpy.run_path(str(folder / name), run_name="__main__")
        except SystemExit as end:
            return end.code or 0, output.getvalue()
        except Exception:
            return 1, output.getvalue() + traceback.format_exc()
    return 0, output.getvalue()


def must_be_known(words):
    """A command that would install or test too much here exists, with what it names."""
    if words[0] == "pip":
        # In which form: tests/docs/test_install_lines.py.
        assert words[1] == "install"
    elif words[0] == "git":
        assert words == ["git", "clone", "$GOLDFORMER_SOURCE", "goldformer"]
    elif words[0] == "make":
        makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)
    else:
        plugin = (REPOSITORY / "conformance" / "plugin.py").read_text(encoding="utf-8")
        assert words[:3] == ["pytest", "--pyargs", "goldformer.conformance"]
        assert all(f'"{word}"' in plugin for word in words[3:] if word.startswith("--"))


def indented_alike(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def must_be_quoted(path, rest):
    """Lines that a page quotes from a file of ours stand there, next to one another."""
    quoted, lines = indented_alike(rest), indented_alike(path.read_text(encoding="utf-8"))
    assert any(lines[i : i + len(quoted)] == quoted for i in range(len(lines))), f"{path.name} no longer has\n{rest}"


# Whoever leaves a query no key subtracts −∞ from −∞, as the tutorial does.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_true(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind, block in blocks(text_of(page)):
        if kind == "console":
            for words, status, shown in commands(block):
                if words[0] in ("git", "pip", "make", "pytest"):
                    must_be_known(words)
                    continue
                got, output = run(words, tmp_path)
                assert got == status, f"{shlex.join(words)}\n{output}"
                must_show(output, shown, shlex.join(words))
            continue
        assert kind in ("python", "yaml"), f"nobody runs a block of {kind}"
        (name,) = re.findall(r"\A# ([\w./-]+)\n", block)
        if (REPOSITORY / name).exists():
            must_be_quoted(REPOSITORY / name, block.partition("\n")[2])
        else:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(block, encoding="utf-8")


def test_a_block_that_is_not_true_is_found(tmp_path):
    must_show("a\nb\nc\n", ["a", GAP, "c"], "it")
    for shown in (["b"], ["a", "c"], ["a", GAP, "d"], ["c", GAP, "a"]):
        with pytest.raises(AssertionError):
            must_show("a\nb\nc\n", shown, "it")
    with pytest.raises(AssertionError):
        must_be_quoted(REPOSITORY / "spec" / "mistakes.yaml", "- id: no-such-mistake\n")


# Links


def headings(path):
    """The fragments under which GitHub finds the headings of a page."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    return {
        anchor(re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", title))
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_every_link_of_a_page_holds_on_github(path):
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", address):
            continue
        place, _, fragment = unquote(address).partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.exists(), address
        assert REPOSITORY in target.parents, address
        if fragment:
            assert fragment in headings(target), address


# What the pages say in words


def test_the_page_on_cases_names_every_field():
    page = text_of("cases")
    models = (CasesFile, CaseModel, GoldenFileModel, GoldenCaseModel, GoldenArrayModel, GoldenStatisticsModel)
    for field in {field for model in models for field in model.model_fields}:
        assert re.search(rf"`{field}`", page), field


def test_the_page_on_cases_shows_every_form_of_recipe_and_of_expectation():
    page = text_of("cases")
    forms = re.findall(r"^\| `(\{.*?\})` \|", page, re.MULTILINE)
    names = {name for form in forms for name in re.findall(r"[a-z_]+(?=:)", form)}
    assert {"values", "fill", "draw", "lengths", "probes", "drawn", "statistics", "error", "gradients"} <= names


def test_the_options_that_the_pages_name_exist():
    commands = [main.get_command(None, name) for name in main.list_commands(None)]
    known = {name for command in commands for p in command.params for name in p.opts}
    for page in PAGES:
        for line in re.findall(r"^\| (`-.*?) \|", text_of(page), re.MULTILINE):
            assert set(re.findall(r"`(-{1,2}[a-z0-9-]+)", line)) <= known, line


def test_the_numbers_of_the_pages_are_those_in_force():
    from goldformer.conformance.judging.tolerance import AVERAGE, COMMON
    from goldformer.spec.oracle import balls, samples
    from goldformer.spec.oracle.rounding import ELEMENT, SLACK

    values, tolerances = text_of("values"), text_of("tolerances")
    assert f"with {balls.PRECISION} bits; a model of full size takes {balls.FULL_SIZE}" in values
    assert f"{balls.DIGITS} significant digits" in values
    assert f"on {samples.SAMPLES} perturbed samples" in tolerances
    assert f"The three numbers, {ELEMENT:g}, {AVERAGE:g} and {COMMON:g}, are chosen once" in tolerances
    assert f"with a slack of {SLACK:g}." in tolerances
    assert ROOT.parent == REPOSITORY


# ── options ──

#: What shows a command line: the written pages, the examples, and what a course is handed.
SHOWING = [
    REPOSITORY / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(p for p in (REPOSITORY / "examples").rglob("*") if p.is_file() and p.suffix in ("", ".md", ".sh", ".yml")),
    *sorted((REPOSITORY / "conformance" / "grading" / "assignments").rglob("README.md")),
]


def options_shown(text):
    """Each option that stands behind a command of goldformer, with that command."""
    for line in re.findall(r"goldformer ([a-z]+ [^\n`]*)", text.replace("\\\n", " ")):
        words = line.split()
        command: click.Command = main
        while words and isinstance(command, click.Group) and (inner := command.get_command(None, words[0])):
            command, words = inner, words[1:]
        if command is not main:
            yield from ((command, option) for option in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", " ".join(words)))


def test_every_option_that_is_shown_exists():
    shown = [(path, *found) for path in SHOWING for found in options_shown(path.read_text(encoding="utf-8"))]
    assert {"grade", "check", "compare"} <= {command.name for _, command, _ in shown}
    unknown = [
        f"{path.relative_to(REPOSITORY)}: {command.name} {option}"
        for path, command, option in shown
        if option not in ("--help", *(name for parameter in command.params for name in parameter.opts))
    ]
    assert not unknown
