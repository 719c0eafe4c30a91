"""docs/wrapped.md, which benchmarks/wrapped.py makes: of made-up runs, and of those that were run."""

from __future__ import annotations

import re

import pytest

from goldformer.adapters.wrapping import WRAPPERS
from repository import REPOSITORY


@pytest.fixture
def wrapped(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks import wrapped

    return wrapped


def verdict(agreement="", reason="", message="", status="passed", distance=None):
    compared = {"wrapper": "compile", "agreement": agreement, "distance": distance} if agreement else None
    return {
        "check": "sm-one", "component": "softmax", "reason": reason, "message": message, "status": status,
        "wrapped": compared,
    }  # fmt: skip


def run(*verdicts, problem=""):
    return {"version": "1", "problem": problem, "verdicts": verdicts}


@pytest.fixture
def made(wrapped):
    runs = {
        "mine": {
            "compile": [
                run(
                    verdict("equal", distance=0.0),
                    verdict("both right", distance=0.125),
                    verdict("wrapped is wrong", "wrapper", "compile is wrong: 2 of 3", "failed"),
                    verdict("both wrong", "wrong-value", "weights: 1 of 3", "failed"),
                    problem="`softmax`: stopped after 4 of 15 checks",
                )
            ],
            "export": [
                run(
                    *[
                        verdict(
                            reason="not-wrapped",
                            message='not wrapped: a|b *c*: File "/code/x.py", line 2',
                            status="skipped",
                        )
                    ]
                    * 2
                )
            ],
            "vmap": [],
        }
    }
    found = [
        ("softmax", {"setting": "batch size", "bitwise": True, "distance": 0.0}),
        ("layer_norm", {"setting": "batch size", "bitwise": True, "distance": 0.0}),
        ("layer_norm", {"setting": "batch size", "bitwise": False, "distance": 0.25}),
        ("layer_norm", {"setting": "threads", "bitwise": True, "distance": 0.0}),
    ]
    settings = {
        name: {"version": "2", "invariances": found, "failures": [("p of softmax", "not so")]}
        for name in ("reference", "jax")
    }
    return wrapped.page(runs, settings)


def test_cases_are_counted_by_how_they_agree(made):
    assert "| component | torch.compile | torch.export | torch.vmap |" in made
    assert "| `softmax` | 1 equal, 1 within, **1 wrong**, **1 wrong without it** | 2 not | – |" in made


def test_deviations_reasons_and_what_was_stopped_are_listed(made):
    assert "- **`sm-one`**: compile is wrong: 2 of 3\n" in made
    assert "- Where both are right, they are at most 0.12 of the tolerance apart.\n" in made
    assert "- 2 not wrapped: a\\|b \\*c\\*\n" in made
    assert "- `softmax`: stopped after 4 of 15 checks\n" in made


def test_settings_that_a_run_cannot_choose_are_no_claim(made):
    of_reference, _, of_jax = made.partition("### jax 2 in other settings")
    assert "| `layer_norm` | 0.25 | – | – | = |" in of_reference
    assert "| `softmax` | = | – | – | – |" in of_reference
    assert "| `layer_norm` | 0.25 | – | – | – |" in of_jax
    assert "- **`p of softmax`**: not so" in of_jax


# The page that was made


@pytest.fixture(scope="module")
def page():
    return (REPOSITORY / "docs" / "wrapped.md").read_text(encoding="utf-8")


def test_every_adapter_has_its_tables(page, wrapped):
    assert re.findall(r"^### (\S+)$", page, re.MULTILINE) == [*wrapped.NAMES]
    assert re.findall(r"^### (\S+) \S+ in other settings$", page, re.MULTILINE) == [*wrapped.IN_SETTINGS]
    assert page.count(f"| component | {' | '.join(WRAPPERS.values())} |") == len(wrapped.NAMES)


def test_the_page_speaks_of_no_folder_of_the_machine_that_made_it(page):
    assert not re.findall(r"""["(]/\S+""", page)
