"""goldformer coverage: what is printed, exit statuses, what is said of a wrong option, and the page it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.commands import coverage as command
from goldformer.spec import load_spec


@pytest.fixture
def coverage(small_spec):
    """Run `goldformer coverage` on the made-up spec, read anew each time."""

    def run(*options):
        load_spec.cache_clear()
        return CliRunner().invoke(main, ["coverage", "--spec", str(small_spec), *options])

    return run


@pytest.fixture
def gap(small_spec):
    """Row L1, its clause and a section of the paper lose what showed them."""
    path = small_spec / "properties.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("clauses: [SM-3]", "clauses: [SM-1]"), encoding="utf-8")


def cells(line):
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


# ── all of it ──


def test_every_row_and_every_erratum_is_a_line(coverage, small_spec):
    result = coverage()
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [cells(line) for line in result.stdout.splitlines()]
    assert lines[:5] == [
        ["row", "clauses", "cases", "refusals", "properties", "shown by"],
        ["notes R1", "SM-1", "2", "–", "–", "sm-shape, sm-five"],
        ["notes R2", "SM-2", "–", "1", "–", "sm-empty"],
        ["notes R3", "–", "1", "–", "–", "sm-shape"],
        ["letters L1", "SM-3", "–", "–", "1", "sm-shift"],
    ]
    assert ["notes-mean", "notes R3", "sm-shape"] in lines
    assert result.stdout.endswith(
        "- 5 clauses: 4 MUST, 0 SHOULD, 1 CONVENTION\n"
        "- 3 cases: 0 with golden values, 0 with golden gradients, 2 with only shapes, 1 refusals; "
        "0 golden numbers in all\n"
        f"- edition {load_spec(small_spec).editions['small']}: 1 component, 5 clauses\n"
        "- 2 properties, 1 conventions, 1 errata, 0 known mistakes\n"
        "- no gaps\n"
    )


def test_a_gap_is_1_and_says_where(coverage, gap, small_spec):
    result = coverage()
    assert result.exit_code == 1
    assert ["letters L1", "SM-3", "–", "–", "–", "nothing"] in [cells(line) for line in result.stdout.splitlines()]
    said = result.stdout[result.stdout.index("- 3 gaps:\n") :].splitlines()
    assert (
        said[1] == f"  - {small_spec.resolve()}/transformer.md:15: SM-3: is a MUST that no case and no property shows"
    )
    assert [line.split(": ")[1] for line in said[1:]] == ["SM-3", "letters L1", "paper 3.2.1"]


def test_one_document_is_judged_by_itself(coverage, gap):
    result = coverage("--document", "notes")
    assert (result.exit_code, "letters" in result.stdout) == (0, False)
    assert result.stdout.endswith("- no gaps\n")
    result = coverage("--document", "letters")
    assert (result.exit_code, "notes" in result.stdout) == (1, False)
    assert "- 2 gaps:\n" in result.stdout


def test_markdown_has_the_tables_of_the_page(coverage, gap):
    coverage("--write")
    result = coverage("--document", "letters", "--format", "markdown")
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "### letters\n\nLetters. About shifts.\n\nAuthor: not stated. Address: not stated. Date: not stated.\n\n| row |"
    )
    assert (
        "| L1 | first | [SM-3](transformer.md#sm-3--must--a-shift-changes-nothing) | – | – | – | **nothing** |\n"
        in (result.stdout)
    )
    assert "\n- 2 gaps:\n  - " in result.stdout


@pytest.mark.parametrize("spoil", [False, True])
def test_json_has_everything(coverage, request, spoil):
    if spoil:
        request.getfixturevalue("gap")
    result = coverage("--format", "json")
    assert result.exit_code == int(spoil)
    entry = json.loads(result.stdout)
    assert entry["rows"][0] == {
        "document": "notes", "row": "R1", "section": "1", "clauses": ["SM-1"],
        "cases": ["sm-shape", "sm-five"], "refusals": [], "properties": ["sm-shift"] * spoil, "errata": [],
    }  # fmt: skip
    assert entry["clauses"][1] == {
        "clause": "SM-2", "level": "MUST", "cases": [], "refusals": ["sm-empty"], "properties": [],
    }  # fmt: skip
    assert entry["errata"] == [
        {"erratum": "notes-mean", "document": "notes", "rows": ["R3"],
         "cases": ["sm-shape"], "refusals": [], "properties": []}
    ]  # fmt: skip
    assert entry["totals"]["clauses"]["MUST"] == 4
    assert [problem.split(": ")[1] for problem in entry["gaps"]] == ["SM-3", "letters L1", "paper 3.2.1"] * spoil


# ── one row ──


def test_a_row_is_shown_in_full(coverage):
    result = coverage("--row", "R1")
    assert result.exit_code == 0
    assert result.stdout == (
        "notes R1 · 1\n"
        "  Softmax makes rows sum to 1.\n"
        "clauses that cite it (1)\n"
        "  SM-1  MUST: The formula: e^x over Σ e^x, of [n]\n"
        "cases whose source it is (1)\n"
        "  sm-shape  Two rows of three, <eos> *included*\n"
        "cases of its clauses and errata (1)\n"
        "  sm-five  Five elements\n"
    )
    assert coverage("--row", "r1").stdout == result.stdout
    assert "\nerrata (1)\n  notes-mean  the mean is 1 → the sum is 1\n" in coverage("--row", "R3").stdout
    assert "\nrefusals of its clauses and errata (1)\n  sm-empty  No elements\n" in coverage("--row", "R2").stdout
    assert "\nproperties (1)\n  sm-shift  a shift changes nothing\n" in coverage("--row", "L1").stdout
    assert coverage("--row", "3.10").stdout.startswith("paper 3.10\n  Cited by section.\n")


def test_a_row_in_markdown_and_json(coverage):
    page = coverage("--row", "R1", "--format", "markdown").stdout
    assert page.startswith(
        "### notes R1 · 1\n\nSoftmax makes rows sum to 1.\n\nclauses that cite it (1):\n\n- **SM-1** "
    )
    assert "- **sm-shape** Two rows of three, \\<eos> \\*included\\*\n" in page
    entry = json.loads(coverage("--row", "R2", "--format", "json").stdout)
    assert (entry["document"], entry["row"], entry["refusals"]) == ("notes", "R2", ["sm-empty"])


def test_a_row_that_nothing_shows_is_1(coverage, gap):
    result = coverage("--row", "L1")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].endswith(
        "documents.yaml:17: letters L1: is shown by no case, no property and no proof of an erratum; "
        "it is cited by only SM-3"
    )
    assert coverage("--row", "R1").exit_code == 0


# ── what is said of a wrong option ──


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--document", "note"], "--document note: did you mean notes? known are notes, letters, paper"),
        (["--document", "x"], "--document x: known are notes, letters, paper"),
        (["--row", "R33"], "--row R33: did you mean R3? known are R1, R2, R3, L1, 3.2, 3.2.1, 3.10"),
        (["--row", "R1", "--document", "letters"], "--row R1: known are L1"),
        (["--write", "--check"], "--write and --check take no other option than --spec"),
        (["--write", "--row", "R1"], "--write and --check take no other option than --spec"),
        (["--check", "--format", "json"], "--write and --check take no other option than --spec"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_2_and_is_told_what_there_is(coverage, small_spec, options, says):
    result = coverage(*options)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"goldformer: {says}\n")
    assert not (small_spec / "README.md").exists()


def test_a_row_of_two_documents_needs_its_document(coverage, small_spec):
    for name in ("documents.yaml", "transformer.md"):
        path = small_spec / name
        path.write_text(path.read_text(encoding="utf-8").replace("L1", "R1"), encoding="utf-8")
    result = coverage("--row", "R1")
    assert (result.exit_code, result.stderr) == (
        2, "goldformer: --row R1 stands in notes and letters: add --document\n",
    )  # fmt: skip
    assert coverage("--row", "R1", "--document", "letters").stdout.startswith("letters R1 · first\n")


def test_an_unusable_spec_is_2(coverage, small_spec):
    (small_spec / "errata.yaml").write_text("", encoding="utf-8")
    result = coverage()
    assert (result.exit_code, result.stderr) == (
        2, f"goldformer: {small_spec.resolve()}/errata.yaml:1: file: is empty\n",
    )  # fmt: skip


# ── the page ──


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_page_is_written_and_nothing_else_and_then_it_is_up_to_date(coverage, small_spec):
    before, page = contents(small_spec), small_spec.resolve() / "README.md"
    repair = f"run goldformer coverage --write --spec {small_spec.resolve()}\n"
    missing = coverage("--check")
    assert (missing.exit_code, missing.stdout) == (1, f"{page}:1: is missing: {repair}")
    assert contents(small_spec) == before
    written = coverage("--write")
    assert (written.exit_code, written.stdout) == (0, f"wrote {page}\n")
    after = contents(small_spec)
    assert after.pop("README.md").startswith(b"<!-- Written by `goldformer coverage --write`")
    assert after == before
    assert (coverage("--check").exit_code, coverage("--check").stdout) == (0, f"{page} says what the spec says\n")
    assert coverage("--write").stdout == f"nothing changed: {page}\n"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [("# The spec", "# A spec", 3), ("notes R3", "notes R4", None), ("", "more\n", 1), ("## Conventions\n", "", None)],
)
def test_a_page_that_differs_is_out_of_date_from_its_first_other_line(coverage, small_spec, old, new, line):
    coverage("--write")
    page = small_spec.resolve() / "README.md"
    text = page.read_text(encoding="utf-8")
    assert old in text
    page.write_text(text.replace(old, new, 1), encoding="utf-8")
    line = line or text[: text.index(old)].count("\n") + 1
    result = coverage("--check")
    assert result.exit_code == 1
    repair = f"run goldformer coverage --write --spec {small_spec.resolve()}"
    assert result.stdout == f"{page}:{line}: is not what the spec says now: {repair}\n"
    assert coverage("--write").exit_code == 0
    assert page.read_text(encoding="utf-8") == text


def test_a_change_of_the_spec_makes_the_page_out_of_date(coverage, gap, small_spec):
    coverage("--write")
    path = small_spec / "properties.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("clauses: [SM-1]", "clauses: [SM-3]"), encoding="utf-8")
    assert coverage("--check").exit_code == 1


def test_line_breaks_of_a_checkout_do_not_matter(coverage, small_spec):
    coverage("--write")
    page = small_spec / "README.md"
    page.write_bytes(page.read_bytes().replace(b"\n", b"\r\n"))
    assert coverage("--check").exit_code == 0


def test_a_page_that_cannot_be_written_is_2_and_stays(coverage, small_spec, monkeypatch):
    coverage("--write")
    page = small_spec.resolve() / "README.md"
    page.write_text("old\n", encoding="utf-8")
    before = contents(small_spec)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    result = coverage("--write")
    assert (result.exit_code, result.stderr) == (
        2, f"goldformer: {page} cannot be written: No space left on device\n",
    )  # fmt: skip
    assert contents(small_spec) == before


def test_the_page_of_the_shipped_spec_is_up_to_date():
    result = CliRunner().invoke(main, ["coverage", "--check"])
    assert result.exit_code == 0, result.stdout


# ── what it costs ──


def test_the_spec_is_loaded_once(coverage, monkeypatch):
    calls = []

    def counted(root, **how):
        calls.append(root)
        return load_spec(root, **how)

    monkeypatch.setattr(command, "load_spec", counted)
    for options in ([], ["--write"], ["--check"], ["--row", "R1"]):
        calls.clear()
        coverage(*options)
        assert len(calls) == 1


def test_neither_torch_nor_the_oracle_is_imported(small_spec):
    code = (
        "import sys; from goldformer.conformance.cli import main;"
        f"sys.argv = ['goldformer', 'coverage', '--write', '--spec', {str(small_spec)!r}];\n"
        "try: main()\n"
        "except SystemExit as done: print('imported', done.code,"
        "[n for n in ('torch', 'flint', 'pytest', 'hypothesis', 'goldformer.spec.oracle') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "imported 0 []"
