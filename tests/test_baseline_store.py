"""Baselines on disk: every dtype exactly, the same bytes for the same numbers, and never half of one."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from drifts import feed_forward, moves, on_torch, recorded, softmax, textbook
from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.baseline.arrays import DTYPES, LARGE, SAMPLED, BadArrays, Kept, places, read, written
from goldformer.conformance.baseline.model import BaselineError
from goldformer.conformance.baseline.moves import Kind
from goldformer.conformance.baseline.store import load, save

# ── arrays ──


def numbers(dtype):
    """Each bit pattern of the half types; numbers of all sizes of the others, with both zeros and what is no number."""
    if dtype in ("float16", "bfloat16"):
        bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
        return LIBRARIES["torch"].numpy(bits)
    if dtype == "bool":
        return np.array([[True, False], [False, False]])
    if not dtype.startswith("float"):
        about = np.iinfo(dtype)
        return np.array([about.min, 0, 1, about.max], dtype=dtype)
    about = np.finfo(dtype)
    some = [0.0, -0.0, 1 / 3, about.max, -about.tiny, about.smallest_subnormal, np.inf, -np.inf, np.nan]
    return np.array(some, dtype=dtype).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit_and_in_its_own_size(dtype):
    kept = Kept.of(numbers(dtype), dtype)
    size = np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize
    assert len(kept.raw) == kept.values.size * size
    ((name, (dtype_read, values)),) = read(written({"a/b": kept})).items()
    assert (name, dtype_read) == ("a/b", dtype)
    assert Kept.of(values, dtype).same(kept)
    if values.dtype.kind == "f":
        some = ~np.isnan(values)
        assert np.array_equal(np.signbit(values[some]), np.signbit(kept.values[some]))
    np.testing.assert_array_equal(values, kept.values)


def test_the_sign_of_a_zero_is_a_bit_and_nan_is_nan():
    zero, negative = Kept.of(np.array([0.0]), "float32"), Kept.of(np.array([-0.0]), "float32")
    assert not zero.same(negative)
    assert Kept.of(np.array([np.nan]), "bfloat16").same(Kept.of(np.array([-np.nan]), "bfloat16"))


def test_other_libraries_read_the_file():
    safetensors = pytest.importorskip("safetensors")
    arrays = {f"of/{dtype}": Kept.of(numbers(dtype), dtype) for dtype in DTYPES}
    found = dict(safetensors.deserialize(written(arrays)))
    assert found.keys() == arrays.keys()
    for name, kept in arrays.items():
        assert (tuple(found[name]["shape"]), bytes(found[name]["data"])) == (kept.shape, kept.raw)


def test_a_large_output_is_kept_as_a_digest_and_a_sample():
    values = np.arange(LARGE + 1, dtype=np.float64).reshape(1, -1)
    kept = Kept.of(values, "float32")
    assert kept.shape == values.shape
    assert kept.values.size == places(values.shape).size <= SAMPLED
    assert np.array_equal(kept.values, values.ravel()[places(values.shape)])
    other = values.copy()
    outside = np.setdiff1d(np.arange(values.size), places(values.shape))[0]
    other[0, outside] += 1
    assert np.array_equal(Kept.of(other, "float32").values, kept.values)
    assert not Kept.of(other, "float32").same(kept)


def test_files_that_are_none_say_where():
    whole = written({"x": Kept.of(np.ones((2, 3)), "float64")})
    for raw, message in [
        (b"PK", "header: has 2 bytes, where its length alone takes 8"),
        (b"\xff" * 16, "header: is to have 18446744073709551615 bytes, and the file has 16"),
        (whole[:-8], "x: lies at bytes 0 to 48 of 40: the file was cut short"),
        (whole.replace(b"[2,3]", b"[2,4]"), "x: has 48 bytes, where float64 of shape (2, 4) takes 64"),
        (whole.replace(b"F64", b"F08"), "x: dtype F08 is none of F64, F32, F16, BF16"),
        (whole.replace(b"shape", b"shade"), "header: is not that of a safetensors file (KeyError: 'shape')"),
    ]:
        with pytest.raises(BadArrays, match=re.escape(message)):
            read(raw)


# ── folders ──


@pytest.fixture(scope="module")
def pair(spec):
    """Two baselines of different code."""
    return recorded(spec, textbook(spec), "softmax", "feed_forward"), recorded(
        spec, textbook(spec, "ffn-gelu"), "softmax", "feed_forward"
    )


def alike(one, other):
    """Whether two baselines hold the same."""
    return (
        one.entries.keys() == other.entries.keys()
        and (one.recordings, one.request, one.spec) == (other.recordings, other.request, other.spec)
        and all(one.arrays[name].same(kept) for name, kept in other.arrays.items())
    )


def test_a_baseline_comes_back_as_it_was(pair, tmp_path, spec):
    save(tmp_path / "new" / "folder", pair[0])
    back = load(tmp_path / "new" / "folder")
    assert alike(back, pair[0])
    assert {move.kind for move in moves(spec, back, pair[0])} == {Kind.IDENTICAL}
    tolerances = [[o.tolerance for o in e.outputs.values()] for b in (back, pair[0]) for e in b.entries.values()]
    assert tolerances[: len(tolerances) // 2] == tolerances[len(tolerances) // 2 :]


def test_the_same_numbers_are_the_same_files(spec, tmp_path):
    for name in ("a", "b"):
        save(tmp_path / name, recorded(spec, on_torch(spec, softmax, feed_forward()), "softmax", "feed_forward"))
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert files[0] == files[1]
    assert len(files[0]) == 2


def test_words_of_all_kinds_come_back(spec, tmp_path):
    odd = 'a "quoted" \\ name:\n#\t\x85 \U0001f600 – ü'

    def raising(scores):
        raise ValueError(odd)

    raising.__name__ = "softmax"
    made = recorded(spec, on_torch(spec, raising, feed_forward(), VERSION="1.0"), "softmax", "feed_forward")
    save(tmp_path, made)
    ended = {entry.ended for entry in load(tmp_path).entries.values() if entry.ended}
    assert ended == {entry.ended for entry in made.entries.values() if entry.ended}
    assert any(odd in one.message for one in ended)


def test_what_an_interruption_left_is_cleared_away(pair, tmp_path):
    save(tmp_path, pair[0])
    (tmp_path / "arrays-0123456789abcdef.safetensors").write_bytes(b"half")
    (tmp_path / ".unfinished-xyz").write_bytes(b"half")
    (tmp_path / "README").write_text("mine", encoding="utf-8")
    assert alike(load(tmp_path), pair[0])
    path = save(tmp_path, pair[1])
    assert {p.name for p in tmp_path.iterdir()} == {"manifest.yaml", path.name, "README"}


def test_a_first_recording_that_was_interrupted_is_no_obstacle(pair, tmp_path):
    (tmp_path / ".unfinished-xyz").write_bytes(b"half")
    (tmp_path / "arrays-0123456789abcdef.safetensors").write_bytes(b"half")
    save(tmp_path, pair[0])
    assert alike(load(tmp_path), pair[0])


def test_a_folder_of_something_else_is_left_alone(pair, tmp_path):
    (tmp_path / "thesis.tex").write_text("…", encoding="utf-8")
    with pytest.raises(BaselineError, match=r"holds other files and no manifest\.yaml; name a folder that is empty"):
        save(tmp_path, pair[0])
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


ENDLESS = """
import sys
from pathlib import Path
from goldformer.conformance.baseline.store import load, save
one, other, target = map(Path, sys.argv[1:])
both = load(one), load(other)
print("ready", flush=True)
while True:
    for baseline in both:
        save(target, baseline)
"""


def test_a_recording_that_is_killed_leaves_the_old_baseline_or_the_new_one(pair, tmp_path):
    one, other, target = (tmp_path / name for name in ("one", "other", "target"))
    save(one, pair[0])
    save(other, pair[1])
    shutil.copytree(one, target)
    moments = random.Random(1)
    left_over = 0
    for _ in range(10):
        words = [sys.executable, "-c", ENDLESS, *map(str, (one, other, target))]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0, 0.05))
            os.kill(child.pid, signal.SIGKILL)
        found = load(target)
        assert alike(found, pair[0]) or alike(found, pair[1])
        left_over += len(list(target.iterdir())) > 2
    path = save(target, pair[0])
    assert {p.name for p in target.iterdir()} == {"manifest.yaml", path.name}
    assert left_over <= 10


# ── what is refused ──


def spoilt(folder, pair, old, new):
    """A baseline whose manifest says something else."""
    save(folder, pair[0])
    text = (folder / "manifest.yaml").read_text(encoding="utf-8")
    assert old in text
    (folder / "manifest.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")


AGAIN = "record it again: goldformer baseline record ADAPTER --out"


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ("format: 1", "format: 2", "format: ", "is 2, and this goldformer reads 1; use the goldformer that wrote it"),
        ("format: 1\n", "", "format: ", "is missing, so this is no baseline's manifest"),
        ('digest: "', 'digest: "0', ": digest: ", "should match pattern"),
        ("request:", "asked:", ": request: ", "is missing"),
        ("  drawn: 0", "  drawn: many", ": request.drawn: ", "valid integer, got 'many'"),
        ("dtype: float32, shape", "dtype: float33, shape", "].outputs.output.dtype: ", "float33 is none of float64,"),
        ("  device: ", "  component: x\n  device: ", ": component: ", "is written twice"),
        ("- case: ", "- cases: ", "results[0].cases: ", "unknown key"),
        ("arrays: arrays-", "arrays: ../arrays-", ": arrays: ", "should match pattern"),
        ("recordings:", "recordings: [", ": file: ", "is not YAML"),
    ],
)
def test_a_bad_manifest_is_refused_with_its_file_its_field_and_what_to_do(pair, tmp_path, old, new, field, message):
    spoilt(tmp_path, pair, old, new)
    with pytest.raises(BaselineError) as raised:
        load(tmp_path)
    said = str(raised.value)
    assert str(tmp_path / "manifest.yaml") in said
    assert AGAIN in said
    assert field in said
    assert message in said


def test_no_folder_and_no_baseline_are_told_apart(tmp_path):
    none = re.escape(f"{tmp_path}: is no baseline: manifest.yaml is missing; {AGAIN}")
    with pytest.raises(BaselineError, match=none):
        load(tmp_path)
    with pytest.raises(BaselineError, match=r"gone: there is no such folder: manifest\.yaml is missing"):
        load(tmp_path / "gone")


def test_arrays_that_are_missing_cut_short_or_changed_are_refused(pair, tmp_path):
    path = save(tmp_path, pair[0])
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(BaselineError, match=rf"{path.name}: .*: the file was cut short; restore the file, or record"):
        load(tmp_path)
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(BaselineError, match=r"manifest\.yaml: digest: is \w{16}…, and arrays-.* one of the two was"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(BaselineError, match=rf"{path.name}: is missing, and .*manifest\.yaml names it under arrays;"):
        load(tmp_path)


def test_a_manifest_and_arrays_that_do_not_fit_are_refused(pair, tmp_path):
    spoilt(
        tmp_path,
        pair,
        "outputs:\n    output: {dtype: float32, shape: [",
        "outputs:\n    output: {dtype: float32, shape: [7, ",
    )
    with pytest.raises(
        BaselineError, match=r"/float32/cpu/output: is float32 of shape .*, and manifest\.yaml has float32 of \[7"
    ):
        load(tmp_path)
    spoilt(tmp_path, pair, "    output: {", "    outcome: {")
    with pytest.raises(BaselineError, match=r"/outcome: is missing, and manifest\.yaml lists it"):
        load(tmp_path)
