"""The page of a drift: what moved, why, and the windows drawn of it; that it stands alone and can be read."""

from __future__ import annotations

import re

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

    def run(new, old=NORM):
        adapter, base, page = folder / "norm.py", folder / "base", folder / "drift.html"
        adapter.write_text(old, encoding="utf-8")
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


def test_the_worst_move_for_a_reason_is_drawn_and_the_others_are_listed(moved):
    _, page = moved
    labels = [attributes["aria-label"] for attributes, _ in page.all("svg")]
    assert [label.partition(",")[0] for label in labels] == ["then", "now", "now − then"]

    reasons = [text for _, text in page.all("summary") if " calls, by up to " in text]
    counts = [int(re.search(r"(\d+) outputs of \1 calls, by up to [\d.e+]+ times", reason)[1]) for reason in reasons]
    assert counts[0] > 6
    assert "semantic" in reasons[0]
    listed = [text for _, text in page.all("li") if text.startswith("ln-")]
    assert len(listed) == sum(counts) - len(counts)  # the worst of each reason is drawn, or described


#: One component rounds otherwise, which is allowed; another one has changed.
TWO = """
import numpy as np
ARRAYS = "numpy"
def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
def layer_norm(x, params):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]
"""
COARSE = TWO.replace("return powers / powers", "powers *= 1 + 1e-7\n    return powers / powers")
COARSE += "precise = layer_norm\ndef layer_norm(x, params):\n"
COARSE += "    return precise(x, params).astype(np.float16).astype(x.dtype)\n"


def test_what_is_not_allowed_comes_first_with_its_reason_under_why(checked):
    status, page = checked(COARSE, TWO)
    assert status == 1
    headings = [text for tag in ("h2", "h3") for _, text in page.all(tag)]
    assert headings[:5] == ["Why", "Environment", "Components", "Moved further than allowed", "Moved, and allowed"]
    # Some moves of the norm are so small that they are allowed.
    assert headings[5:] == ["layer_norm", "layer_norm", "softmax"]
    assert [text.split()[0] for _, text in page.all("tr")][1:] == ["layer_norm", "softmax"]
    first, reason, *_ = [text for _, text in page.all("dd")]
    assert (first, re.match(r"[^:.]*", reason)[0]) == ("layer_norm", "looks like float16")
    assert re.search(r"\. (\d+) of \d+ outputs that moved\.", reason)


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
