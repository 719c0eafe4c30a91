"""The page of a drift: what moved, why, and the windows drawn of it; that it stands alone and can be read."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from pages import PAIRS, READABLE, Page, contrast, must_scroll_by_keyboard, must_stand_alone

NORM = """
import numpy as np
ARRAYS, NAME = "numpy", "<b>mine</b>"
def layer_norm(x, params):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Check a changed adapter against what it gave before: the exit status and the page."""
    folder = tmp_path_factory.mktemp("drift")

    def run(new):
        adapter, base, page = folder / "norm.py", folder / "base", folder / "drift.html"
        adapter.write_text(NORM, encoding="utf-8")
        given = [str(adapter), "--dtype", "float32"]
        CliRunner().invoke(main, ["baseline", "record", *given, "--out", str(base)], catch_exceptions=False)
        adapter.write_text(new, encoding="utf-8")
        words = ["baseline", "check", *given[:1], str(base), "--html", str(page)]
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        return done.exit_code, Page(page.read_text(encoding="utf-8"))

    return run


@pytest.fixture(scope="module")
def moved(checked):
    return checked(NORM.replace("1e-5", "1e-6"))


def test_it_says_what_moved_and_why(moved):
    status, page = moved
    assert status == 1
    said = " ".join(text for _, text in page.all("p") + page.all("dd"))
    assert "✗ Worst: semantic; allowed: rounding." in said
    assert "layer_norm_eps: 1e-6 (as in many ports of the paper's own code). It reproduces your output in" in said
    assert "goldformer baseline check" in said
    (row,) = [text for _, text in page.all("tr") if text.startswith("layer_norm")]
    assert row.split()[1:7].count("·") == 3


def test_the_worst_moves_are_drawn(moved):
    _, page = moved
    labels = [attributes["aria-label"] for attributes, _ in page.all("svg")]
    assert [label.partition(",")[0] for label in labels] == ["then", "now", "now − then"] * 3


def test_it_stands_alone_and_can_be_read_by_keyboard_and_in_the_dark(moved):
    _, page = moved
    must_stand_alone(page)
    must_scroll_by_keyboard(page)
    kinds = [(f"{kind}i", kind) for kind in ("identical", "rounding", "precision", "semantic", "unexplained", "form")]
    for pair in [*PAIRS, *kinds]:
        for scheme in (0, 1):
            assert contrast(page, pair, scheme) >= READABLE, (pair, scheme)


def test_names_are_text_and_never_markup(moved):
    _, page = moved
    assert [text for _, text in page.all("h1")] == ["What moved in <b>mine</b>"]


def test_where_nothing_moved_it_says_so(checked):
    status, page = checked(NORM)
    assert status == 0
    assert page.all("svg") == []
    assert "✓ Worst: identical; allowed: rounding." in " ".join(text for _, text in page.all("p"))


def test_a_folder_that_is_not_there_is_refused_before_the_work():
    done = CliRunner().invoke(main, ["baseline", "check", "textbook", "base", "--html", "no/a.html"])
    assert (done.exit_code, done.stderr.strip()) == (2, "goldformer: --html no/a.html: there is no folder no")
