"""A baseline in a git repository: a diff shows the numbers of what moved."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from goldformer.conformance.baseline.array_files import StoredArray, from_bytes, to_bytes, to_text
from goldformer.conformance.cli import main
from repository import REPOSITORY

SOFTMAX = """
import numpy as np
ARRAYS = "numpy"
def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
MASK = """
import numpy as np
ARRAYS = "numpy"
def causal_mask(*, q_seq, kv_seq):
    return np.tri(q_seq, kv_seq, kv_seq - q_seq, dtype=bool)
"""
#: As docs/baselines.md has it.
ATTRIBUTES = "*.safetensors -text -merge diff=goldformer"


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Make a repository, and return what runs git in it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def run(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *words], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    run("init", "--quiet")
    return run


def baseline(*words):
    done = CliRunner().invoke(main, ["baseline", *words])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def record(source):
    with open("mine.py", "w", encoding="utf-8") as file:
        file.write(source)
    return baseline("record", "mine.py", "--out", "base", "--dtype", "float32")


def test_an_update_is_a_readable_diff_of_what_moved_only(git, tmp_path):
    assert ATTRIBUTES in (REPOSITORY / "docs" / "baselines.md").read_text(encoding="utf-8")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / ".gitattributes").write_text(ATTRIBUTES, encoding="utf-8")
    record(SOFTMAX + MASK)
    git("add", ".")
    git("commit", "--quiet", "-m", "Record a baseline")
    with open("mine.py", "a", encoding="utf-8") as file:
        file.write("first = softmax\ndef softmax(scores):\n    return first(scores) * scores.dtype.type(1.5)\n")
    said = baseline("update", "mine.py", "base", "--fix", "--yes")
    assert said[-1] == "- wrote base/manifest.yaml and softmax.safetensors (0.3 MiB)"
    assert git("diff", "--name-only").split() == ["base/manifest.yaml", "base/softmax.safetensors", "mine.py"]
    # Without the configuration git says no more than that they differ.
    assert "Binary files a/base/softmax.safetensors and b/base/softmax.safetensors differ" in git("diff")
    git("config", "diff.goldformer.textconv", f"{sys.executable} -m goldformer baseline show")
    lines = git("diff", "base/softmax.safetensors").splitlines()
    assert " sm-equal-elements/float32/cpu/output: float32 [3, 7]" in lines
    assert "-  0.49538028 0.009073206 0.49538028 0.00016618156" in lines
    assert "+  0.7430704 0.01360981 0.7430704 0.00024927233" in lines


def test_numbers_are_shown_in_their_shortest_digits_a_few_on_a_line():
    arrays = {
        "a/half": StoredArray.of(np.array([[0.333251953125, np.nan], [-0.0, np.inf]]), "float16"),
        "b/brain": StoredArray.of(np.array([0.33203125, 2.0**100]), "bfloat16"),
        "c/flags": StoredArray.of(np.array([True, False]), "bool"),
        "d/scalar": StoredArray.of(np.array(7), "int64"),
        "e/empty": StoredArray.of(np.zeros((2, 0)), "float64"),
        "f/long": StoredArray.of(np.arange(9), "int64"),
    }
    assert list(to_text(from_bytes(to_bytes(arrays)))) == [
        "a/half: float16 [2, 2]", "  0.3333 nan", "  -0.0 inf",
        "b/brain: bfloat16 [2]", "  0.332 1.268e+30",
        "c/flags: bool [2]", "  True False",
        "d/scalar: int64 []", "  7",
        "e/empty: float64 [2, 0]",
        "f/long: int64 [9]", "  0 1 2 3 4 5 6 7", "  8",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"PK",
            "goldformer: odd: its 2 bytes are no whole safetensors file: ",
        ),
        (None, "goldformer: odd: No such file or directory"),
    ],
)
def test_what_is_no_file_of_arrays_is_2(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "odd").write_bytes(content)
    done = CliRunner().invoke(main, ["baseline", "show", "odd"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert " ".join(done.stderr.split()).startswith(message)


def test_names_in_a_file_from_anybody_steer_no_terminal(tmp_path):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(to_bytes({"\x1b[31m": StoredArray.of(np.array([1.0]), "float32")}))
    done = CliRunner().invoke(main, ["baseline", "show", str(path)])
    assert done.stdout == "\\x1b[31m: float32 [1]\n  1.0\n"
