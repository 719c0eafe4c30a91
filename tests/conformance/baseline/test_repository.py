"""A baseline in a git repository: an update changes the files of what moved only."""

from __future__ import annotations

import os
import subprocess

import pytest
from click.testing import CliRunner

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
ATTRIBUTES = "*.safetensors -text -merge"


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


def test_an_update_changes_the_files_of_what_moved_only(git, tmp_path):
    assert ATTRIBUTES in (REPOSITORY / "docs" / "baselines.md").read_text(encoding="utf-8")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / ".gitattributes").write_text(ATTRIBUTES, encoding="utf-8")
    record(SOFTMAX + MASK)
    git("add", ".")
    git("commit", "--quiet", "-m", "Record a baseline")
    with open("mine.py", "a", encoding="utf-8") as file:
        file.write("first = softmax\ndef softmax(scores):\n    return first(scores) * scores.dtype.type(1.5)\n")
    said = baseline("update", "mine.py", "base", "--yes")
    assert said[-1] == "- wrote base/manifest.yaml and softmax.safetensors (0.3 MiB)"
    assert git("diff", "--name-only").split() == ["base/manifest.yaml", "base/softmax.safetensors", "mine.py"]
    assert "Binary files a/base/softmax.safetensors and b/base/softmax.safetensors differ" in git("diff")
