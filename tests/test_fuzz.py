"""Spoilt files from strangers, thousands for each loader: read or refused in a sentence, soon and in bounded memory.

Messages of the protocol are spoilt in tests/adapters/process/test_fuzz.py. `make test-all` tries fifty times as many.
"""

from __future__ import annotations

import ast
import io
import json
import random
import resource
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from goldformer.adapters.notebook import NotebookError, read_notebook, write_source
from goldformer.conformance.baseline.array_files import BadArrays, StoredArray, from_bytes
from goldformer.conformance.baseline.model import (
    Baseline,
    BaselineError,
    BaselineRequest,
    Entry,
    Key,
    Output,
    Recording,
)
from goldformer.conformance.baseline.store import load, save
from goldformer.conformance.grading.assignment import read_assignment
from goldformer.conformance.grading.model import SubmissionLimits
from goldformer.conformance.grading.submissions import find_submissions
from goldformer.spec import Spec, SpecError
from goldformer.spec.load import load_own_cases
from homework import YAML, write_assignment
from rpc import spoilt

pytestmark = pytest.mark.timeout(3600)

INPUTS = 2000
ALL = 100_000
#: Seconds of computing that one file may take, and bytes of memory that all of them may add.
LONGEST = 1.0
LARGEST = 300 << 20

#: What is written somewhere into a file of YAML.
PIECES = (
    b"&a ", b"*a", b"!!int abc ", b"!!python/name:os.system ", b"!", b"<<: ", b"<<: *a\n", b"? ", b": ", b"- ", b"|\n",
    b">-\n  ", b"%TAG ! x\n", b"---\n", b"...\n", b"\t", b"2001-13-45", b"2001-02-03", b"0x_", b"0b_", b"1:60:1",
    b".inf", b"-.inf", b".nan", b"1e999", b"1" * 5000, b"[" * 500, b"{a: " * 500, b"- " * 500, b"null", b"~", b"yes",
    b"=", b"\xef\xbb\xbf", b"\x00", b"\xc2\x85", b"\xe2\x80\xa8", b"\x1b[31m", b"# ", b"'", b'"', b"\\", b"@", b"`",
    b"%", b"numbers@0", b"1_000", b"-0", b"1/0", b"2**31", b"a: b\n", b"\xf0\x9f\x98\x80" * 40,
)  # fmt: skip

CASES = """\
component: softmax
cases:
  - id: mine
    title: From somebody
    clauses: [SM-1]
    source: derived
    sizes: {lead: [2], n: 3}
    inputs: {scores: {draw: dyadic, seed: 1, range: [-2, 2], step: 1/32}}
    expect: {output: all}
  - id: other
    title: Numbers
    clauses: [SM-1]
    source: {document: walkthrough, rows: [W4]}
    sizes: {lead: [2], n: 3}
    inputs: {scores: {values: [[1, 2.5, -40], [0, 1, .5]]}}
    expect: {output: all}
"""


def spoilt_yaml(rng: random.Random, text: bytes) -> bytes:
    """A file of YAML, which may be JSON, with one to three changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.5:
            text = spoilt(rng, text, [text])
        else:
            start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            text = text[:start] + rng.choice(PIECES) + text[rng.choice((start, start, end)) :]
    return text


def as_json(text: str) -> bytes:
    """The same data in JSON, whose values can be replaced by others."""
    return json.dumps(yaml.safe_load(text)).encode()


@pytest.fixture
def inputs(request: pytest.FixtureRequest) -> int:
    return ALL if request.config.getoption("--all") else INPUTS


def try_all(
    bases: list[bytes], inputs: int, spoil: Callable[[random.Random, bytes], bytes], read: Callable[[bytes], str]
) -> Counter[str]:
    """Read many spoilt files; `read` returns the outcome, "read" or "refused", which are counted."""
    # The first file has the spec read, and models and schemas made.
    assert {read(data) for data in bases} == {"read"}
    rng, outcomes = random.Random(1), Counter[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(inputs):
        data = spoil(rng, rng.choice(bases))
        start = time.process_time()
        outcomes[read(data)] += 1
        assert time.process_time() - start < LONGEST, data[:2000]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < LARGEST
    return outcomes


def check_problems(error: SpecError) -> str:
    """Each problem is a file, a line, a field and a sentence."""
    for problem in error.problems:
        assert problem.line >= 1
        assert problem.field
        assert 0 < len(problem.message) < 20_000
    return "refused"


def check_start(error: Exception, path: Path) -> str:
    """The message begins with the file, and is no page."""
    assert str(error).startswith(str(path))
    assert len(str(error)) < 20_000
    return "refused"


def test_spoilt_cases_are_read_or_refused(spec: Spec, tmp_path: Path, inputs: int) -> None:
    path = tmp_path / "cases.yaml"

    def read(data: bytes) -> str:
        path.write_bytes(data)
        try:
            cases = load_own_cases(path, spec)
        except SpecError as error:
            return check_problems(error)
        for case in cases:
            assert case.input_arrays.keys() <= {"scores"}
        return "read"

    outcomes = try_all([CASES.encode(), as_json(CASES)], inputs, spoilt_yaml, read)
    assert min(outcomes["read"], outcomes["refused"]) > inputs / 50


def test_spoilt_assignments_are_read_or_refused(spec: Spec, tmp_path: Path, inputs: int) -> None:
    path = write_assignment(tmp_path)

    def read(data: bytes) -> str:
        path.write_bytes(data)
        try:
            read_assignment(path, spec)
        except SpecError as error:
            return check_problems(error)
        return "read"

    outcomes = try_all([YAML.encode(), as_json(YAML)], inputs, spoilt_yaml, read)
    assert min(outcomes["read"], outcomes["refused"]) > inputs / 50


def a_baseline(folder: Path) -> Path:
    """Save a small baseline, and return the file of its arrays."""
    array = StoredArray.of(np.array([0.25, 0.75]), "float32")
    entry = Entry("softmax", "0" * 16, {"output": Output(array, 0.5, 0)})
    request = BaselineRequest(dtypes=("float32",), devices=("cpu",), components=("softmax",), threads=1, tf32=False)
    recording = Recording(
        given="mine", name="mine", version="1", arrays="numpy", conventions={}, environment={"a": "b"}
    )
    key = Key("sm-one-row-by-hand", "float32", "cpu")
    (path,) = save(folder, Baseline("0.1", "0" * 64, request, (recording,), {key: entry}))
    return path


def test_spoilt_manifests_are_read_or_refused(tmp_path: Path, inputs: int) -> None:
    a_baseline(tmp_path)
    path = tmp_path / "manifest.yaml"
    good = path.read_bytes()

    def read(data: bytes) -> str:
        path.write_bytes(data)
        try:
            load(tmp_path)
        except BaselineError as error:
            return check_start(error, tmp_path)
        return "read"

    outcomes = try_all([good, as_json(good.decode())], inputs, spoilt_yaml, read)
    # A comment, a space: whatever the file says is in the digest.
    assert 0 < outcomes["read"] < inputs / 3


def test_spoilt_arrays_are_read_or_refused(tmp_path: Path, inputs: int) -> None:
    good = a_baseline(tmp_path).read_bytes()

    def read(data: bytes) -> str:
        try:
            from_bytes(data)
        except BadArrays:
            return "refused"
        return "read"

    outcomes = try_all([good], inputs, lambda rng, data: spoilt(rng, data, [good]), read)
    assert outcomes["refused"] > inputs / 2


def test_spoilt_zips_are_read_or_refused(tmp_path: Path, inputs: int) -> None:
    path, limits = tmp_path / "m.zip", SubmissionLimits(size=1, files=5)
    bases = []
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as archive:
            archive.writestr("hw/submission.py", b"def softmax(scores):\n    return scores\n" * 9)
            archive.writestr("hw/data/x.txt", b"abc" * 50)
        bases.append(buffer.getvalue())

    def read(data: bytes) -> str:
        path.write_bytes(data)
        (handed,) = find_submissions(path).handed
        found = handed.read(limits)
        assert bool(found.files) != bool(found.problem)
        assert sum(map(len, found.files.values())) <= 1 << 20
        assert len(found.problem) < 1000
        return "refused" if found.problem else "read"

    outcomes = try_all(bases, inputs, lambda rng, data: spoilt(rng, data, bases), read)
    assert min(outcomes["read"], outcomes["refused"]) > inputs / 50


#: A notebook with code of every kind that reading keeps and drops.
CODE = """\
# EXPORTED? no
from __future__ import annotations
import math; x = 'é'; print(x)
%time f()
if x > 3:
    y = \'\'\'a
b\'\'\'
elif x:
    z: int = 2
try:
    import torch
except ImportError: torch = None
@cache
def softmax(scores): return scores
"""
#: What ends a line for some readers and not for others, and what has a meaning in Python or IPython.
CHARACTERS = "\n\r\x0c\x0b\x1c\x85\u2028\u2029\ud800\x00\t '\"#%!?;:\\()=\ufeffé"


def spoilt_notebook(rng: random.Random, data: bytes) -> bytes:
    """Change the bytes of a notebook, or the code in it."""
    if rng.random() < 0.3:
        return bytes(spoilt(rng, data, [data]))
    book = json.loads(data)
    for cell in book["cells"]:
        text = list(cell["source"])
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randrange(3)] = rng.choice(CHARACTERS)
        cell["source"] = "".join(text)
    return json.dumps(book).encode()


def test_spoilt_notebooks_are_read_or_refused(inputs: int) -> None:
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": CODE}
    book = {"cells": [cell, {**cell, "source": "y = 2\n"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}

    def read(data: bytes) -> str:
        try:
            source = write_source(read_notebook(data, "lab.ipynb"))
        except NotebookError as error:
            message = str(error).encode()
            return check_start(error, Path("lab.ipynb")) if len(message) < 2000 else "too long"
        # What is kept of Python is Python.
        ast.parse(source)
        return "read"

    outcomes = try_all([json.dumps(book).encode()], inputs, spoilt_notebook, read)
    assert min(outcomes["read"], outcomes["refused"]) > inputs / 50
