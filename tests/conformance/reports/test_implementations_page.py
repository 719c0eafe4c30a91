"""docs/implementations.md, which benchmarks/implementations.py makes: of made-up runs, and of those that were run."""

from __future__ import annotations

import re

import pytest

from goldformer.adapters import BUILT_IN, DTYPES, OF_LIBRARIES
from repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "implementations.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def ran(problem="", **tallies):
    """A run in float32: by component, how many passed, failed and errored, and the worst ratio."""
    keys = ("passed", "failed", "errored", "worst_ratio")
    cells = [{"component": c, "dtypes": {"float32": dict(zip(keys, t, strict=True))}} for c, t in tallies.items()]
    return {"name": "it", "version": "1.2", "components": cells, "seconds": 1.0, "problem": problem}


@pytest.fixture
def made(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks import implementations

    runs = {
        "good": {"float32": ran(softmax=(44, 0, 0, 0.125), one_hot=(30, 0, 0, None), dropout=(0, 0, 0, None))},
        "bad": {
            "float32": ran(softmax=(40, 3, 1, "inf")),
            "float16": ran("left out, as it takes more than 3 minutes"),
        },
    }
    return implementations.page(runs, ["softmax", "dropout", "one_hot"]).splitlines()


def test_what_passes_and_what_fails_is_counted_by_dtype_and_in_all(made):
    assert "| [good](#good) | – | 74/74 | – | – | 0.125 |" in made
    assert "| [bad](#bad) | – | **40/44** | – | – | ∞ |" in made
    assert "| `softmax` | – | 44/44 | – | – | 0.125 |" in made
    assert "| `one_hot` | – | 30/30 | – | – | – |" in made
    assert "| `softmax` | – | **40/44** | – | – | ∞ |" in made


def test_what_was_not_judged_has_no_line_and_what_was_left_out_is_named(made):
    assert not [line for line in made if "dropout" in line]
    assert "Version 1.2. float16: left out, as it takes more than 3 minutes. Not run: float64, bfloat16." in made


def test_what_was_not_run_again_keeps_its_line_and_its_section(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks.implementations import keep_parts

    old = "| [a](#a) | 1/1 |\n| [b](#b) | 2/2 |\n\n## a\n\nold a\n\n## b\n\nold b\n"
    made = "| [a](#a) | – |\n| [b](#b) | 3/3 |\n\n## a\n\nnothing\n\n## b\n\nnew b\n"
    expected = "| [a](#a) | 1/1 |\n| [b](#b) | 3/3 |\n\n## a\n\nold a\n\n## b\n\nnew b\n"
    assert keep_parts(made, old, ["a"]) == expected


# The page that was made


def test_every_adapter_has_a_section_and_a_line():
    names = [*BUILT_IN, *OF_LIBRARIES]
    assert [*SECTIONS] == names
    assert re.findall(r"^\| \[(\S+)\]\(#\1\) \|", PAGE, re.MULTILINE) == names


def test_every_line_is_of_a_component_and_adds_up_to_the_first_table(spec):
    for name, section in SECTIONS.items():
        lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
        listed = [line[0].strip("`") for line in lines]
        assert listed == [component for component in spec.components if component in listed]
        (total,) = re.findall(rf"^\| \[{name}\]\(#{name}\) \| (.*) \|$", PAGE, re.MULTILINE)
        for column, cell in enumerate(total.split(" | ")[: len(DTYPES)], start=1):
            counts = [line[column].strip("*").split("/") for line in lines if line[column] != "–"]
            added = [sum(int(count[i]) for count in counts) for i in (0, 1)]
            assert cell.strip("*") == (f"{added[0]}/{added[1]}" if counts else "–")


def test_what_comes_with_the_project_fails_nowhere():
    for name in BUILT_IN:
        assert "**" not in SECTIONS[name]


def test_what_fails_has_a_section_of_findings():
    findings = (REPOSITORY / "docs" / "findings.md").read_text(encoding="utf-8")
    assert {name for name, section in SECTIONS.items() if "**" in section} <= set(
        re.findall("^## (.*)$", findings, re.M)
    )
