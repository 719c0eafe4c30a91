"""Baselines on disk: every dtype exactly, the same bytes for the same numbers, and never half of one."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from disks import full_disk
from drifts import feed_forward, moves, on_torch, recorded, softmax, textbook
from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.baseline.array_files import (
    DTYPES,
    HEADER_AT_MOST,
    LARGE,
    SAMPLED,
    BadArrays,
    StoredArray,
    draw_places,
    from_bytes,
    to_bytes,
)
from goldformer.conformance.baseline.manifest import read_manifest
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
    of = np.finfo(dtype)
    some = [0.0, -0.0, 1 / 3, of.max, -of.tiny, of.smallest_subnormal, np.inf, -np.inf, np.nan]
    return np.array(some, dtype=dtype).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit_and_in_its_own_size(dtype):
    kept = StoredArray.of(numbers(dtype), dtype)
    size = np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize
    assert len(kept.raw) == kept.values.size * size
    ((name, (dtype_read, values)),) = from_bytes(to_bytes({"a/b": kept})).items()
    assert (name, dtype_read) == ("a/b", dtype)
    assert StoredArray.of(values, dtype).equals(kept)
    if values.dtype.kind == "f":
        some = ~np.isnan(values)
        assert np.array_equal(np.signbit(values[some]), np.signbit(kept.values[some]))
    np.testing.assert_array_equal(values, kept.values)


def test_the_sign_of_a_zero_is_a_bit_and_nan_is_nan():
    zero, negative = StoredArray.of(np.array([0.0]), "float32"), StoredArray.of(np.array([-0.0]), "float32")
    assert not zero.equals(negative)
    assert StoredArray.of(np.array([np.nan]), "bfloat16").equals(StoredArray.of(np.array([-np.nan]), "bfloat16"))


def test_pytorch_reads_the_file():
    """It knows the dtypes by itself, bfloat16 among them."""
    from safetensors.torch import load as load_tensors

    arrays = {f"of/{dtype}": StoredArray.of(numbers(dtype), dtype) for dtype in DTYPES}
    found = load_tensors(to_bytes(arrays))
    assert found.keys() == arrays.keys()
    for name, kept in arrays.items():
        assert (str(found[name].dtype), tuple(found[name].shape)) == (f"torch.{kept.dtype}", kept.shape)
        assert found[name].flatten().view(torch.uint8).numpy().tobytes() == kept.raw


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_a_scalar_and_nothing_at_all_have_a_shape_too(dtype, shape):
    values = np.ones(shape, "float64" if "float" in dtype else dtype)
    ((_, (dtype_read, read_back)),) = from_bytes(to_bytes({"x": StoredArray.of(values, dtype)})).items()
    assert (dtype_read, read_back.shape, read_back.dtype) == (dtype, shape, values.dtype)
    np.testing.assert_array_equal(read_back, values)


def test_the_file_does_not_depend_on_the_order_of_its_arrays():
    arrays = {f"{i}/{dtype}": StoredArray.of(numbers(dtype), dtype) for i in range(3) for dtype in DTYPES}
    assert to_bytes(dict(reversed(arrays.items()))) == to_bytes(arrays)


def file_of(header, data=b""):
    """A file with a header that is written by hand."""
    return len(header).to_bytes(8, "little") + header + data


def test_files_that_goldformer_laid_out_itself_are_read():
    """As it did before a library did: sizes fall, names ascend, and all of it is ASCII."""
    raw = file_of(
        b'{"a/\\u00fc":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},'
        b'"b":{"dtype":"I64","shape":[],"data_offsets":[16,24]},'
        b'"c":{"dtype":"F32","shape":[1,1],"data_offsets":[24,28]},'
        b'"d":{"dtype":"BF16","shape":[3],"data_offsets":[28,34]},'
        b'"e":{"dtype":"BOOL","shape":[2],"data_offsets":[34,36]},'
        b'"f":{"dtype":"BOOL","shape":[0,4],"data_offsets":[36,36]}} ',
        struct.pack("<2dqf3H2?", 1 / 3, -0.0, -7, 0.25, 0x3F80, 0x8000, 0x7F80, True, False),
    )
    found = {name: (dtype, values.shape, values.tolist()) for name, (dtype, values) in from_bytes(raw).items()}
    assert found == {
        "a/ü": ("float64", (2,), [1 / 3, -0.0]),
        "b": ("int64", (), -7),
        "c": ("float32", (1, 1), [[0.25]]),
        "d": ("bfloat16", (3,), [1.0, -0.0, np.inf]),
        "e": ("bool", (2,), [True, False]),
        "f": ("bool", (0, 4), []),
    }


def test_a_large_output_is_kept_as_a_digest_and_a_sample():
    values = np.arange(LARGE + 1, dtype=np.float64).reshape(1, -1)
    kept = StoredArray.of(values, "float32")
    assert kept.shape == values.shape
    assert kept.values.size == draw_places(values.shape).size <= SAMPLED
    assert np.array_equal(kept.values, values.ravel()[draw_places(values.shape)])
    other = values.copy()
    outside = np.setdiff1d(np.arange(values.size), draw_places(values.shape))[0]
    other[0, outside] += 1
    assert np.array_equal(StoredArray.of(other, "float32").values, kept.values)
    assert not StoredArray.of(other, "float32").equals(kept)


def entry(dtype="F64", shape="[2,3]", start=0, end=48):
    return b'{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (dtype.encode(), shape.encode(), start, end)


X = b'{"x":%s}'
NUMBERS = bytes(48)
NO_FILE = r"^its \d+ bytes are no whole safetensors file: .*"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", NO_FILE + "header too small"),
        (b"PK", "^its 2 bytes .*header too small"),
        (b"\xff" * 16, "^its 16 bytes .*header too large"),
        (b"version https://git-lfs.github.com/spec/v1\n", NO_FILE + "header too large"),
        (file_of(X % entry(), NUMBERS[:-8]), NO_FILE + "file not fully covered"),
        (file_of(X % entry(), NUMBERS + b"more"), NO_FILE + "file not fully covered"),
        (file_of(X % entry(shape="[2,4]"), NUMBERS), NO_FILE + "invalid shape"),
        (file_of(X % entry(shape="[-2,-3]"), NUMBERS), NO_FILE + "integer `-2`"),
        (file_of(X % entry(shape="[2.0,3]"), NUMBERS), NO_FILE + "floating point `2.0`"),
        (file_of(X % entry(shape=f"[{2**40},{2**40}]"), NUMBERS), NO_FILE + "overflow"),
        (file_of(X % entry(start=48, end=0), NUMBERS), NO_FILE + "invalid offset for tensor `x`"),
        (file_of(X % entry(start=8, end=56), bytes(56)), NO_FILE + "invalid offset for tensor `x`"),
        (file_of(b'{"x":%s,"y":%s}' % (entry(), entry()), NUMBERS), NO_FILE + "invalid offset for tensor `[xy]`"),
        (file_of(X % entry("F08"), NUMBERS), NO_FILE + "unknown variant `F08`"),
        (file_of((X % entry()).replace(b"shape", b"shade"), NUMBERS), NO_FILE + "missing field `shape`"),
        (file_of(b"[1,2]"), NO_FILE + "invalid type: sequence"),
        (file_of(b'{"x":' + b"[" * 100_000), NO_FILE + "recursion limit exceeded"),
        (file_of(b'{"\xff":1}'), NO_FILE + "invalid UTF-8"),
        (file_of(X % entry("C64", "[6]"), NUMBERS), "^x: dtype C64 is none of F64, F32, F16, BF16"),
        (file_of(X % entry(shape="[2,3" + ",1" * 64 + "]"), NUMBERS), r"^x: is float64 of shape \[2, 3.*no array has"),
        (file_of(X % entry(shape=f"[{2**62},0]", end=0)), r"^x: is float64 of shape \[4611686018427387904, 0\], which"),
    ],
)
def test_files_that_are_none_say_what_is_wrong(raw, message):
    with pytest.raises(BadArrays, match=message):
        from_bytes(raw)


def test_a_longer_header_is_no_header():
    assert from_bytes(file_of(b"{}" + b" " * (HEADER_AT_MOST - 2))) == {}
    with pytest.raises(BadArrays, match="header too large"):
        from_bytes(file_of(b"{}" + b" " * (HEADER_AT_MOST - 1)))


def test_no_change_of_a_few_bytes_does_anything_but_refuse():
    """A changed file is refused or still read as one, and nothing else is raised."""
    whole = to_bytes(
        {dtype: StoredArray.of(numbers(dtype)[:2], dtype) for dtype in ("float64", "bfloat16", "int64", "bool")}
    )
    draw = random.Random(1)
    refused = 0
    for _ in range(5000):
        raw = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(raw))
            raw[at : at + draw.randrange(3)] = draw.choice([b"", b"\xff", b"-1", b"0", b"9" * 20, b"[", b"{", b'"'])
        with np.errstate(invalid="ignore"):
            try:
                from_bytes(bytes(raw))
            except BadArrays:
                refused += 1
    assert refused > 4000


# ── folders ──

#: What the folder of a baseline of two components holds.
FILES = {"manifest.yaml", "softmax.safetensors", "feed_forward.safetensors"}


@pytest.fixture(scope="module")
def pair(spec):
    """Two baselines of different code."""
    return recorded(spec, textbook(spec), "softmax", "feed_forward"), recorded(
        spec, textbook(spec, "activation: gelu"), "softmax", "feed_forward"
    )


def alike(one, other):
    """Return True if two baselines are equal."""
    return (
        one.entries.keys() == other.entries.keys()
        and (one.recordings, one.request, one.spec) == (other.recordings, other.request, other.spec)
        and all(one.arrays[c][name].equals(kept) for c, mine in other.arrays.items() for name, kept in mine.items())
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
    assert files[0].keys() == FILES


def test_words_of_all_kinds_come_back(spec, tmp_path):
    odd = 'a "quoted" \\ name:\n#\t\x85 \U0001f600 – ü'

    def raising(scores):
        raise ValueError(odd)

    raising.__name__ = "softmax"
    # YAML 1.1 takes this version for text, and YAML 1.2 for a number.
    made = recorded(spec, on_torch(spec, raising, feed_forward(), VERSION="1e-5"), "softmax", "feed_forward")
    save(tmp_path, made)
    assert load(tmp_path).recordings[0].version == "1e-5"
    ended = {entry.ended for entry in load(tmp_path).entries.values() if entry.ended}
    assert ended == {entry.ended for entry in made.entries.values() if entry.ended}
    assert any(odd in one.message for one in ended)


def test_what_an_interruption_left_is_cleared_away(pair, tmp_path):
    save(tmp_path, pair[0])
    (tmp_path / ".next-softmax-0123456789abcdef.safetensors").write_bytes(b"whole")
    (tmp_path / ".unfinished-xyz").write_bytes(b"half")
    (tmp_path / "README").write_text("mine", encoding="utf-8")
    assert alike(load(tmp_path), pair[0])
    save(tmp_path, pair[1])
    assert {p.name for p in tmp_path.iterdir()} == {*FILES, "README"}


def test_a_first_recording_that_was_interrupted_is_no_obstacle(pair, tmp_path):
    (tmp_path / ".unfinished-xyz").write_bytes(b"half")
    (tmp_path / ".next-softmax-0123456789abcdef.safetensors").write_bytes(b"whole")
    (tmp_path / ".gitattributes").write_text("mine", encoding="utf-8")
    save(tmp_path, pair[0])
    assert alike(load(tmp_path), pair[0])
    assert {p.name for p in tmp_path.iterdir()} == {*FILES, ".gitattributes"}


def test_only_the_components_that_changed_are_written(pair, tmp_path):
    assert {path.name for path in save(tmp_path, pair[0])} == FILES - {"manifest.yaml"}
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    moved = {key: e for key, e in pair[1].entries.items() if e.component == "feed_forward"}
    other = replace(pair[0], entries={**pair[0].entries, **moved})
    assert [path.name for path in save(tmp_path, other)] == ["feed_forward.safetensors"]
    after = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"feed_forward.safetensors", "manifest.yaml"}
    assert alike(load(tmp_path), other)
    assert save(tmp_path, other) == []


def test_the_file_of_a_component_that_is_gone_goes_too(pair, tmp_path):
    save(tmp_path, pair[0])
    (tmp_path / "weights.safetensors").write_bytes(b"mine")
    kept = {key: entry for key, entry in pair[0].entries.items() if entry.component == "softmax"}
    save(tmp_path, replace(pair[0], entries=kept))
    assert {p.name for p in tmp_path.iterdir()} == {"manifest.yaml", "softmax.safetensors", "weights.safetensors"}
    assert load(tmp_path).entries.keys() == kept.keys()


def test_a_folder_of_the_format_before_is_recorded_again_without_its_arrays(pair, tmp_path):
    (tmp_path / "manifest.yaml").write_text("format: 2\ngoldformer: 0.1.0\n", encoding="utf-8")
    (tmp_path / "arrays-0123456789abcdef.safetensors").write_bytes(b"old")
    message = "is 2, and this goldformer reads 4; use the goldformer that wrote it .0.1.0., or check out the code that"
    with pytest.raises(BaselineError, match=f"{message} it was recorded from and {AGAIN}"):
        load(tmp_path)
    save(tmp_path, pair[0])
    assert {p.name for p in tmp_path.iterdir()} == FILES


def test_a_format_of_any_length_is_refused_in_a_short_message(tmp_path):
    (tmp_path / "manifest.yaml").write_text(f"format: {'z' * 100_000}\n", encoding="utf-8")
    with pytest.raises(BaselineError, match="format: is zzz") as caught:
        load(tmp_path)
    assert len(str(caught.value)) < 1000


class Killed(BaseException):
    """The end of a recording at some step."""


def test_a_recording_that_ends_at_any_step_leaves_one_of_the_two_and_the_next_one_clears_up(
    pair, tmp_path, monkeypatch
):
    """Each renaming is a step: of the file, of the manifest, and of the file to its own name."""
    renamed = Path.replace
    one, other = pair  # the gradients of their softmax differ, so that both files change
    seen = set()
    for last in range(6):
        folder = tmp_path / str(last)
        save(folder, one)
        steps = iter(range(last))

        def step(path, target, steps=steps):
            if next(steps, None) is None:
                raise Killed
            return renamed(path, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", step)
            # A process that is killed clears nothing away.
            patched.setattr("goldformer.conformance.baseline.store._remove_left_overs", lambda *_: None)
            with contextlib.suppress(Killed):
                save(folder, other)
        found = load(folder)
        seen.add(alike(found, one))
        assert alike(found, one) or alike(found, other)
        # The next one may fail too, and takes nothing away that the manifest still needs.
        with full_disk(100), pytest.raises(BaselineError, match="cannot be written: File too large"):
            save(folder, replace(one, goldformer="next"))
        again = load(folder)
        assert alike(again, found)
        save(folder, one)
        assert alike(load(folder), one)
        assert {p.name for p in folder.iterdir()} == FILES
    assert seen == {True, False}


def test_a_folder_of_something_else_is_left_alone(pair, tmp_path):
    (tmp_path / "thesis.tex").write_text("…", encoding="utf-8")
    with pytest.raises(BaselineError, match=r"holds other files and no manifest\.yaml; name a folder that is empty"):
        save(tmp_path, pair[0])
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_who_reads_while_another_is_written_gets_one_of_the_two(pair, tmp_path, monkeypatch):
    save(tmp_path, pair[0])

    def read_and_overtaken(folder):
        monkeypatch.undo()
        found = read_manifest(folder)
        save(tmp_path, pair[1])
        return found

    monkeypatch.setattr("goldformer.conformance.baseline.store.read_manifest", read_and_overtaken)
    assert alike(load(tmp_path), pair[1])


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
    for _ in range(4):
        words = [sys.executable, "-c", ENDLESS, *map(str, (one, other, target))]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0, 0.05))
            os.kill(child.pid, signal.SIGKILL)
        found = load(target)
        assert alike(found, pair[0]) or alike(found, pair[1])
    save(target, pair[0])
    assert {p.name for p in target.iterdir()} == FILES


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
        ("format: 4", "format: 2", "format: ", "is 2, and this goldformer reads 4; use the goldformer that wrote it"),
        ("format: 4\n", "", "format: ", "is missing, so this is no baseline's manifest"),
        ("digest: ", "digest: 0", ": digest: ", "should match pattern"),
        ("request:", "asked:", ": request: ", "is missing"),
        ("dtype: float32, shape", "dtype: float33, shape", "].outputs.output.dtype: ", "float33 is none of float64,"),
        ("  device: ", "  component: x\n  device: ", ": results[0].component: ", "is written twice"),
        ("- case: ", "- cases: ", "results[0].cases: ", "unknown key"),
        ("float32, shape: [", "float32, shape: [-1, ", "].outputs.output.shape[0]: ", "greater than or equal to 0"),
        (
            "float32, shape: [",
            "float32, shape: [65537, ",
            "].outputs.output.shape: ",
            "more than 65536, and there is no",
        ),
        # These began a line of the output, where build servers run commands.
        ("- case: ", '- case: "a\\n::error::b" #', "].case: ", "has a line break, expected one line"),
        ("  device: ", '  device: "\\L::error::b" #', "].device: ", "has a line break, expected one line"),
        ("    output: {", '    "a\\n::error::b": {', "].outputs.", "has a line break, expected one line"),
        ("  - cpu", '  - "a\\n::error::b"', ": request.devices[0]: ", "has a line break"),
        ("goldformer: ", 'goldformer: "a\\n::error::b" #', ": goldformer: ", "has a line break"),
        (
            "format: 4\ngoldformer: ",
            'format: 2\ngoldformer: "a\\n::error::b" #',
            ": format: is 2",
            "wrote it (a ::error::b",
        ),
        ("  softmax: ", "  ../softmax: ", ": files.../softmax", "should match pattern"),
        ("  component: softmax", "  component: ../softmax", "].component: ", "should match pattern"),
        ("  softmax: ", "  softmin: ", ": files: ", "no result has an output of softmin"),
        ("  softmax: ", "  softmin: ", ": files: ", "softmax has outputs and no file"),
        ("recordings:", "recordings: [", ": file: ", "is not YAML"),
        # These six were read: with an infinite tolerance every move was rounding, and check ended with 0.
        ("tolerance: ", "tolerance: .inf, odd: ", ".tolerance: ", "Input should be a finite number, got inf"),
        ("tolerance: ", "tolerance: .nan, odd: ", ".tolerance: ", "Input should be a finite number, got nan"),
        ("tolerance: ", "tolerance: -", ".tolerance: ", "Input should be greater than or equal to 0, got -"),
        (
            "  threads: 1",
            "  threads: 100000",
            ": request.threads: ",
            "should be less than or equal to 1024, got 100000",
        ),
        ("  devices:\n  - cpu", "  devices: []", ": request.devices: ", "should have at least 1 item"),
        # A file of 12 KB asked for each call 90,000 times.
        (
            "  devices:\n  - cpu",
            f"  devices: [{', '.join(['cpu'] * 50)}]",
            ": request.devices: ",
            "cpu is listed 50 times, expected once, got ['cpu', 'cpu'",
        ),
        ("  dtypes:\n", "  dtypes:\n  - float32\n", ": request.dtypes: ", "float32 is listed 2 times, expected once"),
        (
            "  dtypes:\n",
            "  dtypes:\n  - a\n  - b\n  - c\n  - d\n",
            ": request.dtypes: ",
            "should have at most 4 items after validation",
        ),
        (
            "  devices:\n  - cpu",
            f"  devices: [{', '.join(f'cpu{nth}' for nth in range(65))}]",
            ": request.devices: ",
            "should have at most 64 items after validation",
        ),
        (
            "  components:\n",
            "  components:\n  - softmax\n  - softmax\n",
            ": request.components: ",
            "softmax is listed 3 times, expected once",
        ),
        # An integer of more digits than Python prints ended in a ValueError.
        (
            "float32, shape: [",
            f"float32, shape: [{','.join(['1' + '0' * 900] * 6)}, ",
            "].outputs.output.shape[0]: ",
            "should be less than or equal to 9223372036854775807",
        ),
        ("float32, shape: [", f"float32, shape: [{'1, ' * 64}", "].outputs.output.shape: ", "at most 64 items"),
        # Each of these was read as it is: the digest was that of the arrays only.
        ("tolerance: ", "tolerance: 9", ": digest: is ", "a field was changed after it was recorded; restore the file"),
        ("  inputs: ", "  inputs: x9", ": digest: is ", "a field was changed after it was recorded; restore the file"),
        ("goldformer: ", 'goldformer: "9" #', ": digest: is ", "a field was changed after it was recorded; restore"),
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
    assert not re.search("^::", said, re.MULTILINE)


def test_no_folder_and_no_baseline_are_told_apart(tmp_path):
    none = re.escape(f"{tmp_path}: is no baseline: manifest.yaml is missing; {AGAIN}")
    with pytest.raises(BaselineError, match=none):
        load(tmp_path)
    with pytest.raises(BaselineError, match=r"gone: there is no such folder: manifest\.yaml is missing"):
        load(tmp_path / "gone")


@pytest.fixture
def path(pair, tmp_path):
    """The file of arrays of one component."""
    save(tmp_path, pair[0])
    return tmp_path / "softmax.safetensors"


def refuse(folder, message):
    with pytest.raises(BaselineError, match=f"{message}; restore the file, or {AGAIN}"):
        load(folder)


def test_arrays_that_are_missing_cut_short_or_changed_are_refused(path, tmp_path):
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    refuse(tmp_path, rf"{path.name}: its {len(raw) // 2} bytes .*not fully covered")
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    refuse(tmp_path, rf"{path.name}: its numbers were changed: manifest\.yaml lists the digest \w+…, and .* has \w+…")
    path.unlink()
    refuse(tmp_path, rf"{path.name}: is missing, and .*manifest\.yaml lists it under files")


def test_the_file_of_another_component_is_refused(path, tmp_path):
    (tmp_path / "feed_forward.safetensors").write_bytes(path.read_bytes())
    refuse(tmp_path, r"feed_forward\.safetensors: ffn-.*/output: is missing, and manifest\.yaml lists it")


def test_arrays_without_an_end_are_not_read_to_it(path, tmp_path):
    with path.open("r+b") as stream:
        stream.truncate(2**40)  # a file with a hole takes no space
    refuse(tmp_path, rf"{path.name}: cannot be read: has more than 1\d{{8}} bytes")


@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.parametrize("name", ["softmax.safetensors", ".next-softmax-{}.safetensors"])
def test_arrays_that_are_no_regular_file_are_refused_at_once(path, tmp_path, kind, name):
    odd = tmp_path / name.format(read_manifest(tmp_path).files["softmax"][:16])
    odd.unlink(missing_ok=True)
    if kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        os.mkfifo(odd)  # nobody writes to it, so that opening it never ended
    refuse(tmp_path, rf"{path.name}: cannot be read: is not a regular file")


def test_other_spaces_and_comments_in_a_manifest_change_nothing(pair, tmp_path):
    """The digest is of what the file says, so that another line ending does not spoil a baseline."""
    save(tmp_path, pair[0])
    path = tmp_path / "manifest.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_bytes(("# mine\n" + text).replace("\n", "\r\n").encode())
    assert alike(load(tmp_path), pair[0])


def test_half_a_surrogate_pair_in_a_message_is_written_and_read(spec, tmp_path):
    def softmax(scores):
        raise ValueError("half \ud800")

    made = recorded(spec, on_torch(spec, softmax, feed_forward(), VERSION="1.0"), "softmax", "feed_forward")
    save(tmp_path, made)
    messages = {entry.ended.message for entry in load(tmp_path).entries.values() if entry.ended}
    assert any("half \\ud800" in message for message in messages)


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
