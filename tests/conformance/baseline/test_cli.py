"""goldformer baseline: what tests/printed/baseline.txt does not show of what its commands print, save and refuse."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from goldformer.conformance.baseline.manifest import digest_manifest, read_manifest
from goldformer.conformance.baseline.store import load
from goldformer.conformance.cli import main

SOFTMAX = """
import numpy as np

ARRAYS = "numpy"
NAME = "mine"
VERSION = "1"
CONVENTIONS = {}

def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)

def layer_norm(x, *, params):
    centred = x - x.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred / root * params["gamma"] + params["beta"]
"""
EPS = SOFTMAX.replace("1e-5", "1e-6").replace('VERSION = "1"', 'VERSION = "2"')
WITHOUT = SOFTMAX.partition("def layer_norm")[0]


def baseline(*arguments, **more):
    return CliRunner().invoke(main, ["baseline", *map(str, arguments)], **more)


@pytest.fixture
def mine(adapter_file):
    return adapter_file(SOFTMAX)


@pytest.fixture
def folder(mine, tmp_path):
    """A baseline of two components in float32."""
    done = baseline("record", mine, "--out", tmp_path / "base", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    return tmp_path / "base"


def digest_of(folder):
    return re.search(r"^digest: (.*)$", (folder / "manifest.yaml").read_text(encoding="utf-8"), re.MULTILINE)[1]


# ── what is said of a move ──


def test_moves_for_the_same_reason_are_shown_once(adapter_file, folder, tmp_path):
    """Two components have changed, each for its own unknown reason; all others of a component are counted."""
    both = SOFTMAX.replace("powers.sum", "1.5 * powers.sum").replace('+ params["beta"]', '+ 1.7 * params["beta"]')
    moved = adapter_file(both, "moved.py")
    done = baseline("check", moved, folder, "--markdown", tmp_path / "drift.md")
    shown = re.findall(r"^UNEXPLAINED  [\w-]+  \((\w+), float32 on cpu\)$", done.stdout, re.MULTILINE)
    assert shown == ["layer_norm", "softmax"]
    text = " ".join(done.stdout.split())
    counts = re.findall(r"Same reason (\d+) outputs of \1 calls, by up to \S+ times the tolerance; others:", text)
    total = int(re.search(r"(\d+) outputs moved further than allowed: --all shows each, --json has them", text)[1])
    headings = re.findall(r"^(?:UNEXPLAINED|PRECISION)  ", done.stdout, re.MULTILINE)
    assert sum(map(int, counts)) + len(headings) - len(counts) == total  # a reason of one output has no line for others
    causes = re.findall(r"Moved first: (\w+) Cause unknown: no lower precision and no .*? Worst: (\w+)-[\w-]+ \(", text)
    assert causes == [("layer_norm", "ln"), ("softmax", "sm")]
    summary = (tmp_path / "drift.md").read_text(encoding="utf-8")
    assert summary.count("- **unexplained**, ") == 2
    assert summary.count("- **precision**, ") == len(headings) - 2  # of the norm, which is far off in few cases only
    assert f"<summary>{total} moved further than allowed</summary>" in summary
    each = baseline("check", moved, folder, "--all").stdout
    assert len(re.findall(r"^(?:UNEXPLAINED|PRECISION)  ", each, re.MULTILINE)) == total
    assert "Same reason" not in each


# ── record and check ──


def test_what_gives_other_numbers_when_called_again_is_said_when_it_is_recorded(adapter_file, tmp_path):
    moving = SOFTMAX.replace("return powers /", "return (1 + 1e-9 * np.random.rand()) * powers /")
    done = baseline("record", adapter_file(moving), "--out", tmp_path / "new", "--dtype", "float64")
    assert done.exit_code == 0
    said = " ".join(done.stderr.split())
    assert re.search(r"a second call gave other numbers: sm-[\w-]+ \(float64, cpu\)\. Later checks", said)
    assert "ln-" not in said
    # It takes one call of each component.
    steady = baseline("record", adapter_file(SOFTMAX), "--out", tmp_path / "new", "--dtype", "float64")
    assert "a second call" not in steady.stderr


# ── a folder from anybody ──


def doctor(folder, old, new):
    """Change a field of a manifest, and its digest as anybody can."""
    path = folder / "manifest.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    digest = digest_manifest(read_manifest(folder))
    path.write_text(path.read_text(encoding="utf-8").replace(digest_of(folder), f'"{digest}"'), encoding="utf-8")


def test_a_manifest_that_asks_for_the_same_again_and_again_is_refused(mine, folder):
    path = folder / "manifest.yaml"
    text, many = path.read_text(encoding="utf-8"), ", ".join(["float32"] * 300)
    path.write_text(text.replace("dtypes:\n  - float32", f"dtypes: [{many}]"), encoding="utf-8")
    done = baseline("check", mine, folder)
    assert done.exit_code == 2
    assert f"{path}:7: request.dtypes: " in done.stderr
    assert "restore the file, or record it again" in done.stderr


def test_a_long_text_of_a_manifest_is_clipped(mine, folder):
    doctor(folder, '    threads: "1"', f"    threads: {'x' * (1 << 20)}")
    done = baseline("check", mine, folder)
    assert done.exit_code == 0, done.stderr
    assert "Changed: threads: xxx" in done.stdout
    assert " characters … xxx" in done.stdout
    assert len(done.output) < 10_000


# An infinite tolerance made every move rounding; a large one did where the digest was adapted to it.
@pytest.mark.parametrize(("tolerance", "code"), [(".inf", 2), ("1.0e+300", 1)])
def test_a_tolerance_from_anybody_does_not_decide(adapter_file, folder, tolerance, code):
    path = folder / "manifest.yaml"
    text = re.sub(r"tolerance: [^,}]+", f"tolerance: {tolerance}", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    moved = adapter_file(SOFTMAX.replace("return powers /", "return 1.5 * powers /"), "moved.py")
    refused = baseline("check", moved, folder)
    assert refused.exit_code == 2
    assert "manifest.yaml: digest: is " in refused.stderr or "a finite number, got inf" in refused.stderr
    if code == 1:
        doctor(folder, "# A baseline", "# A baseline")
        done = baseline("check", moved, folder)
        assert done.exit_code == 1
        assert "worst: unexplained, allowed: rounding" in done.stdout


def test_text_of_a_manifest_steers_no_terminal(mine, folder):
    odd = '"\\e[31m\\u202e[/red]"'
    doctor(folder, "    processor: ", f"    processor: {odd} # ")
    done = baseline("check", mine, folder)
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert "\u202e" not in done.output
    assert r"Changed: processor: \x1b[31m\u202e[/red] → " in done.stdout


def test_an_unknown_key_with_control_characters_is_refused_in_plain_characters(mine, folder):
    with (folder / "manifest.yaml").open("a", encoding="utf-8") as manifest:
        manifest.write('"\\e[31m": 1\n')
    done = baseline("check", mine, folder)
    assert done.exit_code == 2
    assert r"manifest.yaml:" in done.stderr
    assert r"\x1b[31m: unknown key" in done.stderr
    assert "\x1b" not in done.output


def test_a_second_function_of_a_component_is_not_recorded_and_named(adapter_file, tmp_path):
    two = """
import numpy as np

def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)

def fast_softmax(x):
    return softmax(x)
"""
    done = baseline("record", adapter_file(two), "--out", tmp_path / "base", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    assert ":fast_softmax is not recorded, because the file has another softmax: record it by itself" in done.stderr


def test_a_component_that_the_spec_has_not_is_refused(mine, folder):
    doctor(folder, "components: []", "components: [softmin]")
    done = baseline("check", mine, folder)
    assert done.exit_code == 2
    assert done.stderr == (
        "goldformer: request.components: 'softmin' is no component of this spec: record the baseline again, or use the "
        "goldformer that wrote it\n"
    )


# ── update ──


ATTENTION = """
import numpy as np

ARRAYS = "numpy"
NAME = "mine"
VERSION = "1"

def scaled_dot_product_attention(query, key, value, mask=None):
    if mask is not None:
        raise NotImplementedError
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights @ value, weights
"""


def test_what_moved_little_beside_what_moved_far_is_accepted_with_it(adapter_file, tmp_path):
    """Else a call would keep outputs of code that no longer exists, from which the next rounding moves them too far."""
    old, folder = adapter_file(ATTENTION, "old.py"), tmp_path / "base"
    assert baseline("record", old, "--out", folder, "--dtype", "float32").exit_code == 0
    text = ATTENTION.replace("return weights @ value, weights", "return weights @ value * 1.5, weights * (1 + 2**-22)")
    new = adapter_file(text.replace('"1"', '"2"'), "new.py")
    assert "rounding" in baseline("check", new, folder).stdout
    assert baseline("update", new, folder, "--yes").exit_code == 0
    entries = [entry for entry in load(folder).entries.values() if len(entry.outputs) > 1]
    assert entries
    assert all(len({output.recording for output in entry.outputs.values()}) == 1 for entry in entries)


TWICE = """
from goldformer.adapters import textbook
ARRAYS = "numpy"

def scaled_dot_product_attention(query, key, value, mask=None):
    return textbook.scaled_dot_product_attention(query GROWN, key, value, mask)
"""


def test_all_outputs_of_a_call_are_listed_in_one_line(adapter_file, tmp_path):
    given = "sdpa-distinct-sizes"
    plain = adapter_file(TWICE.replace("GROWN", ""))
    assert baseline("record", plain, "--out", tmp_path / "b", "--dtype", "float32").exit_code == 0
    other = adapter_file(TWICE.replace("GROWN", "* 2.7"))
    done = baseline("update", other, tmp_path / "b", "--case", given, "--dry-run")
    far = r"[\d.e+]+"
    assert re.fullmatch(
        rf"update: 4 unexplained\n"
        rf"  scaled_dot_product_attention, 4 unexplained: by up to {far} times the tolerance.*\n"
        rf"    {given} \(float32 on cpu\): output {far}, weights {far}, scores {far}, scaled_scores {far}\n"
        rf"nothing was written: --dry-run\n",
        done.stdout,
    ), done.stdout


def test_no_text_of_a_baseline_begins_a_line(adapter_file, tmp_path):
    """Build servers run commands at the start of a line."""
    folder, forged = tmp_path / "baseline", "a\n::error::b\x1b[2J\u202e"
    fails = adapter_file(f"{WITHOUT}\n\ndef layer_norm(x, *, params):\n    raise ValueError({forged!r})\n", "fails.py")
    made = baseline("record", fails, "--out", folder)
    assert made.exit_code == 0
    other = adapter_file(EPS)
    dry = baseline("update", other, folder, "--dry-run")
    assert "it was raised ValueError: a ::error::b\\x1b[2J\\u202e" in dry.stdout
    assert baseline("update", other, folder, "--yes", "--reason", forged).exit_code == 0
    page, text = tmp_path / "drift.html", tmp_path / "drift.md"
    done = baseline("check", other, folder, "--html", page, "--markdown", text)
    assert r"Accepted earlier: a ::error::b\x1b[2J\u202e (layer_norm)" in done.stdout.splitlines()
    for file in (page, text):
        assert not set("\x1b\u202e") & set(file.read_text(encoding="utf-8"))
    for text in (made.output, dry.output, done.output):
        assert not re.search("^::", text, re.MULTILINE)


def test_an_update_of_one_component_leaves_the_others_as_recorded(folder, adapter_file):
    """A call that is gone is removed, a new one is added, and nothing else changes."""
    less, whole = adapter_file(WITHOUT.replace("powers.sum", "1.5 * powers.sum"), "less.py"), adapter_file(SOFTMAX)
    calls = len(load(folder).entries)
    assert baseline("update", less, folder, "--component", "softmax", "--yes").exit_code == 0
    assert len(load(folder).entries) == calls
    assert baseline("check", less, folder, "--component", "softmax").exit_code == 0
    assert baseline("check", less, folder).exit_code == 1
    assert baseline("update", less, folder, "--yes").exit_code == 0
    assert {entry.component for entry in load(folder).entries.values()} == {"softmax"}
    assert baseline("update", whole, folder, "--yes").stdout.startswith("update: ")
    assert len(load(folder).entries) == calls
    assert baseline("check", whole, folder).exit_code == 0


def test_a_build_server_writes_nothing(folder, adapter_file, monkeypatch):
    monkeypatch.setenv("CI", "true")
    before = digest_of(folder)
    done = baseline("update", adapter_file(EPS), folder, "--yes")
    assert done.exit_code == 2
    assert "writes nothing where CI is set: run it on a machine of your own" in done.stderr
    assert digest_of(folder) == before
    assert baseline("update", adapter_file(EPS), folder, "--dry-run").exit_code == 0


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
def test_on_a_terminal_it_is_asked(folder, adapter_file, monkeypatch, answer, code):
    before = digest_of(folder)
    monkeypatch.setattr("goldformer.conformance.commands.baseline.is_interactive", lambda: True)
    done = baseline("update", adapter_file(EPS), folder, input=answer)
    assert done.exit_code == code
    assert f"Write this to {folder}? [y/N]" in done.stdout
    assert (digest_of(folder) == before) is (code != 0)
