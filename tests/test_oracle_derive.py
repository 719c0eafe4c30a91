"""Golden values into their files and back: the writer's bytes, the proof of the digits, and `goldformer derive`."""

from __future__ import annotations

import math
import re
from concurrent.futures import Future
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import flint
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from goldformer.conformance.cli import main
from goldformer.spec import Spec, load_spec
from goldformer.spec.files import replace_file
from goldformer.spec.model import ANY, Wanted
from goldformer.spec.oracle import balls, run
from goldformer.spec.oracle.derive import Derived, DerivedArray, derive
from goldformer.spec.oracle.write import number, write_golden
from goldformer.spec.yamlfile import YamlFile

# ── the writer ──

DIGEST = "0123456789abcdef"
PLAIN = Derived(2.5, 0.0, {ANY: {"output": DerivedArray((2,), ("0.25", "1.0000000000000000e-5"), 1.25)}})
BLOCK = """\
    golden:
      derivation: '0123456789abcdef'
      peak: 2.5
      outputs:
        output:
          error_scale: 1.25
          values: [0.25, 1.0e-5]
"""


def write(path: Path, *ids: str, derived: Derived = PLAIN, wanted: dict[str, Wanted] | None = None) -> bool:
    wanted = wanted or {"output": Wanted("all")}
    return write_golden(YamlFile.read(path), dict.fromkeys(ids, (DIGEST, derived)), dict.fromkeys(ids, wanted))


def written(tmp_path: Path, text: str, *ids: str, **more) -> str:
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode())
    assert write(path, *(ids or ("a",)), **more)
    return path.read_bytes().decode()


#: The end of case a, and § where its golden block belongs.
ENDS = {
    "a scalar": "t: 1\n§",
    "a comment behind": "t: 1  # why\n§",
    "a comment below": "t: 1\n§    # about nothing\n\n  # about b\n",
    "blank lines": "t: 1\n§\n\n\n",
    "a flow list": "t: [1, 2]\n§",
    "a flow list over lines": "t: [1,\n      2,\n\n      3]  # here\n§",
    "a flow list closed below": "t: [\n      1,\n      2,\n    ]\n§\n",
    "a flow mapping over lines": "t: {x: 1,\n      y: {z: [2,\n        3]}}\n§\n",
    "a block list": "t:\n      - 1\n      - [2,\n        3]\n§\n",
    "a block mapping": "t:\n      x: 1\n      y:\n        z: 2\n§\n    # below\n",
    "quotes over lines": 't: "one\n      two"\n§\n',
    "words over lines": "t: one\n      two\n§\n",
    "nothing": "t:\n§\n",
    "an empty list": "t: []\n§",
    "umlauts": "t: √d_k·größe\n§",
    # To YAML a block scalar ends where the next token begins, which is past the comment, or in case b.
    "folded words": "t: >-\n      one\n      two\n§",
    "folded words and a blank line": "t: >-\n      one\n§\n",
    "literal words and a comment": "t: |\n      one\n§\n    # below\n",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("behind", ["  - id: b\n    t: 2\n", ""], ids=["between", "last"])
def test_a_block_goes_to_the_end_of_its_case_and_every_other_byte_stays(tmp_path: Path, end, behind):
    text = f"# head\ncases:  # all\n  - id: a\n    {end}{behind}"
    assert written(tmp_path, text.replace("§", "")) == text.replace("§", BLOCK)


@pytest.mark.parametrize("end", ["t: 1", "t: [1,\n      2]", "t: 1\n    # comment"])
def test_a_file_without_a_last_line_break_gets_one(tmp_path: Path, end):
    first, _, rest = end.partition("\n    # ")
    expected = f"cases:\n  - id: a\n    {first}\n{BLOCK}" + (f"    # {rest}\n" if rest else "")
    assert written(tmp_path, f"cases:\n  - id: a\n    {end}") == expected


# Reading a text translates its line breaks; writing must bring them back.
def test_windows_line_breaks_stay(tmp_path: Path):
    text = written(tmp_path, "cases:\r\n  - id: a\r\n    t: 1\r\n")
    assert text.replace(BLOCK, "").replace(BLOCK.replace("\n", "\r\n"), "") == "cases:\r\n  - id: a\r\n    t: 1\r\n"


# A block below the braces could no longer be read.
def test_a_case_in_braces_is_refused_or_written_readably(tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_text("cases:\n  - {id: a, t: 1}\n  - id: b\n", encoding="utf-8")
    try:
        write(path, "a")
    except ValueError:
        return
    assert YamlFile.read(path).data["cases"][0]["golden"]["peak"] == 2.5


def test_several_cases_are_written_at_once_and_others_left(tmp_path: Path):
    text = "cases:\n  - id: a\n    t: 1\n§\n  - id: b\n    t: [1,\n      2]\n\n  - id: c\n    t: 1\n§"
    assert written(tmp_path, text.replace("§", ""), "a", "c") == text.replace("§", BLOCK)


def test_an_existing_block_is_replaced_where_it_stands(tmp_path: Path):
    old = "    golden:\n      peak: 1\n      # lost\n      outputs:\n        z: [1,\n          2]\n"
    text = "cases:\n  - id: a\n§    # kept\n    t: 1\n\n  # kept\n  - id: b\n§    t: 1\n"
    assert written(tmp_path, text.replace("§", old), "a", "b") == text.replace("§", BLOCK)


def test_writing_twice_changes_nothing(tmp_path: Path):
    path = tmp_path / "x.yaml"
    once = written(tmp_path, "cases:\n  - id: a\n    t: 1\n")
    before = path.stat()
    assert not write(path, "a")
    assert path.read_text(encoding="utf-8") == once
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


NUMBERS = [
    ("1.0000000000000000e-5", "1.0e-5", 1e-5),
    ("1.2500000000000000e-7", "1.25e-7", 1.25e-7),
    ("1e+22", "1.0e+22", 1e22),
    ("1e22", "1.0e+22", 1e22),
    ("1e-05", "1.0e-05", 1e-5),
    ("-3.0000000000000000", "-3", -3),
    ("100.00000000000000", "100", 100),
    ("100", "100", 100),
    ("0", "0", 0),
    ("-0.000123456789012345670", "-0.00012345678901234567", -0.00012345678901234567),
    ("0.54029447601661048", "0.54029447601661048", 0.54029447601661048),
    ("true", "true", True),
    ("false", "false", False),
]


@pytest.mark.parametrize(("text", "expected", "value"), NUMBERS)
def test_a_number_is_written_as_yaml_reads_it(text, expected, value):
    assert number(text) == expected
    read = yaml.safe_load(number(text))
    assert read == value
    assert type(read) is type(value)


def test_nan_is_written_as_yaml_reads_it():
    assert number("nan") == ".nan"
    assert math.isnan(yaml.safe_load(number("nan")))


def test_every_double_comes_back_as_itself(tmp_path: Path):
    random = np.random.default_rng(1)
    values = random.standard_normal(500) * 10.0 ** random.integers(-30, 30, 500)
    texts = tuple(flint.arb(v).mid().str(17, radius=False) for v in values.tolist())
    derived = Derived(1.0, 0.0, {ANY: {"output": DerivedArray((500,), texts, 1.0)}})
    text = written(tmp_path, "cases:\n  - id: a\n", derived=derived)
    assert yaml.safe_load(text)["cases"][0]["golden"]["outputs"]["output"]["values"] == values.tolist()
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3), (2, 1, 3), (1, 2, 3, 5), (3, 1, 1, 2), (2, 40)])
def test_arrays_of_any_rank_come_back_in_their_shape(tmp_path: Path, shape):
    values = np.arange(math.prod(shape)).reshape(shape) / 8
    texts = tuple(map(repr, values.ravel().tolist()))
    derived = Derived(1.0, 0.0, {"one": {"output": DerivedArray(shape, texts, 0.0)}, "other": None})
    text = written(tmp_path, "cases:\n  - id: a\n", derived=derived)
    golden = yaml.safe_load(text)["cases"][0]["golden"]
    assert golden["options"] == {"one": {"output": {"error_scale": 0, "values": values.tolist()}}, "other": "refused"}


def test_a_margin_stands_behind_the_peak(tmp_path: Path):
    text = written(tmp_path, "cases:\n  - id: a\n", derived=replace(PLAIN, margin=0.0123))
    assert text == "cases:\n  - id: a\n" + BLOCK.replace("peak: 2.5\n", "peak: 2.5\n      margin: 0.0123\n")


def test_drawn_probes_stand_beside_their_values(tmp_path: Path):
    places = tuple((0, k, 99 - k) for k in range(30))
    derived = Derived(1.0, 0.0, {ANY: {"output": DerivedArray((30,), tuple(map(str, range(30))), 2.0)}})
    for drawn in (True, False):
        wanted = {"output": Wanted("probes", places, drawn=drawn)}
        text = written(tmp_path, "cases:\n  - id: a\n", derived=derived, wanted=wanted)
        output = yaml.safe_load(text)["cases"][0]["golden"]["outputs"]["output"]
        assert output["values"] == list(range(30))
        assert output.get("at") == ([list(place) for place in places] if drawn else None)


def test_a_crash_while_writing_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.yaml"
    path.write_text("cases:\n  - id: a\n", encoding="utf-8")

    def fail(self, target):
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"^the disk is full$"):
        write(path, "a")
    assert path.read_text(encoding="utf-8") == "cases:\n  - id: a\n"
    assert list(tmp_path.iterdir()) == [path], "no half-written file is left behind"


def test_a_replaced_file_keeps_its_mode(tmp_path: Path):
    path = tmp_path / "x.yaml"
    for mode in (0o600, 0o664):
        path.touch()
        path.chmod(mode)
        replace_file(path, "new")
        assert (path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777) == ("new", mode)


# ── the proof ──


@pytest.mark.parametrize(
    ("ball", "digits"),
    [
        (lambda: flint.arb(1).exp(), "2.7182818284590452"),
        (lambda: -flint.arb(2).sqrt(), "-1.414213562373095"),
        (lambda: flint.arb(1) / 1024, "0.0009765625"),
        (lambda: flint.arb(10) ** 20 / 3, "3.3333333333333333e+19"),
        (lambda: flint.arb(-80).exp(), "1.8048513878454153e-35"),
        (lambda: flint.arb(-400).exp(), "1.9151695967140057e-174"),
        (lambda: flint.arb(3), "3"),
    ],
)
def test_a_proven_ball_is_printed_to_17_digits(ball, digits):
    printed = balls.decimal(ball())
    # The last of 17 digits may be rounded either way when the next one is a 5.
    assert abs(Fraction(printed) / Fraction(digits) - 1) <= Fraction(1, 10**16)
    assert len(re.sub(r"e.*|[-.]|^0[.]0*", "", printed).lstrip("0")) <= 17


@pytest.mark.parametrize("ball", [lambda: flint.arb(0), lambda: flint.arb(2).sqrt() ** 2 - 2])
def test_what_is_zero_or_cancels_to_below_ten_to_the_minus_38_is_printed_as_zero(ball):
    assert balls.decimal(ball()) == "0"


# A golden 0 is exact: an enclosure around it that is merely small proves nothing.
@pytest.mark.parametrize("middle", [0, 1e-21])
def test_what_may_be_zero_is_not_printed_as_zero(middle):
    with pytest.raises(balls.Unproven, match="is not proven to be"):
        balls.decimal(flint.arb(middle, 1e-20))


def test_nan_is_printed_as_nan():
    assert balls.decimal(flint.arb("nan")) == "nan"


@pytest.mark.parametrize("bits", [30, 53])
def test_too_few_bits_prove_nothing(monkeypatch: pytest.MonkeyPatch, bits):
    monkeypatch.setattr(flint.ctx, "prec", bits)
    with pytest.raises(balls.Unproven, match=r"^\[.* \+/- .*\] is not proven to be 2\.718281"):
        balls.decimal(flint.arb(1).exp())


@pytest.mark.parametrize(("radius", "proven"), [("4.9e-17", True), ("6e-17", False), ("1e-3", False)])
def test_a_ball_is_proven_when_it_allows_one_rounding_alone(radius, proven):
    ball = flint.arb("1.2345678901234568") + flint.arb(0, flint.arb(radius))
    if proven:
        assert balls.decimal(ball).startswith("1.2345678901234568")
    else:
        with pytest.raises(balls.Unproven, match=r"is not proven to be 1\.2345678901234568$"):
            balls.decimal(ball)


def test_a_case_of_too_few_bits_is_not_derived(spec: Spec, monkeypatch: pytest.MonkeyPatch):
    case = spec.cases["sm-one-row-by-hand"]
    monkeypatch.setattr(flint.ctx, "prec", 40)
    with pytest.raises(balls.Unproven, match="is not proven to be"):
        derive(case, spec.contracts[case.component], spec.conventions)


def test_balls_are_tight_by_far(spec: Spec):
    """What 17 digits ask for is 1e-17; the balls are tighter than 1e-60."""
    case = spec.cases["mha-distinct-sizes"]
    derived = derive(case, spec.contracts[case.component], spec.conventions)
    assert 0 < derived.widest < 1e-60


def test_a_derivation_survives_its_cache(spec: Spec):
    case = spec.cases["pe-odd-5"]
    derived = derive(case, spec.contracts[case.component], spec.conventions)
    assert Derived.from_json(yaml.safe_load(yaml.safe_dump(derived.as_json()))) == derived
    assert derived.options["refused"] is None


# ── the command ──

SOFTMAX = "cases/softmax.yaml"


class Inline:
    """A pool of no processes."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def submit(self, function, *args, **kwargs):
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


@pytest.fixture
def copy(spec_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec of one small case file, a cache of its own, and nothing remembered between two commands."""
    for path in (spec_copy / "cases").glob("*.yaml"):
        if path.stem not in ("softmax", "causal_mask"):
            path.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("goldformer.conformance.commands.derive.load_spec", load_spec.__wrapped__)
    monkeypatch.setattr(run, "ProcessPoolExecutor", Inline)
    return spec_copy


def goldformer(copy: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["derive", "--spec", str(copy), *arguments])


def edit(copy: Path, old: str, new: str) -> None:
    text = (copy / SOFTMAX).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (copy / SOFTMAX).write_text(text.replace(old, new), encoding="utf-8")


def strip(copy: Path) -> None:
    """Take every golden block out of every case file."""
    for path in (copy / "cases").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"    golden:\n(?:      .*\n)+", "", text), encoding="utf-8")


def files(copy: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (copy / "cases").iterdir()}


def test_deriving_writes_what_is_shipped_and_check_then_proves_it(copy: Path):
    shipped = files(copy)
    strip(copy)
    assert files(copy)["softmax.yaml"].count("golden:") == 0
    result = goldformer(copy)
    assert result.exit_code == 0, result.output
    assert files(copy) == shipped
    assert f"wrote {copy.resolve()}/cases/softmax.yaml\n" in result.output
    result = goldformer(copy, "--check", "--no-cache")
    assert result.exit_code == 0, result.output
    assert re.fullmatch(
        r"proven: \d+ values of (\d+) cases, \1 cases derived anew, widest ball \de-\d+, .* s\n", result.output
    )


def test_deriving_again_derives_nothing_and_changes_nothing(copy: Path, tmp_path: Path):
    first = goldformer(copy)
    assert re.search(r"^nothing changed: \d+ values of (\d+) cases, \1 cases derived anew,", first.output), first.output
    cached = list((tmp_path / "cache/goldformer/derivations").glob("*.json"))
    assert len(cached) == int(re.search(r"of (\d+) cases", first.output)[1])
    shipped = files(copy)
    second = goldformer(copy)
    assert re.search(r"^nothing changed: \d+ values of \d+ cases, 0 cases derived anew,", second.output), second.output
    assert second.output.split(",")[2] == first.output.split(",")[2]
    assert files(copy) == shipped
    assert ", 0 cases derived anew," not in goldformer(copy, "--no-cache").output


def test_only_the_named_case_is_derived(copy: Path):
    shipped = files(copy)
    strip(copy)
    result = goldformer(copy, "--case", "sm-one-row-by-hand", "--no-cache")
    assert result.exit_code == 0, result.output
    assert "3 values of 1 cases, 1 cases derived anew" in result.output
    assert files(copy)["softmax.yaml"].count("    golden:") == 1
    assert files(copy)["softmax.yaml"].split("\n\n")[0] == shipped["softmax.yaml"].split("\n\n")[0]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("0.042010066134066051", "0.042010066134066151", "output: golden values differ from those derived now"),
        ("0.11419519938459448,", "0.11519519938459448,", "output: golden values differ from those derived now"),
        ("          error_scale: 1.57", "          error_scale: 1.7", "output: error scale 1.7 is 1.57 now"),
        ("          error_scale: 1.57", "          error_scale: 1.5", "output: error scale 1.5 is 1.57 now"),
    ],
    ids=["last digits", "a digit", "a larger scale", "a smaller scale"],
)
def test_check_names_the_case_that_moved_with_file_and_line(copy: Path, old, new, why):
    edit(copy, old, new)
    moved = files(copy)
    result = goldformer(copy, "--check")
    assert result.exit_code == 1, result.output
    said, summary = result.output.splitlines()
    assert said == f"{copy.resolve()}/{SOFTMAX}:4: sm-one-row-by-hand: {why}"
    assert re.match(r"moved: 1 of \d+ values of \d+ cases, ", summary)
    assert files(copy) == moved, "checking writes nothing"


# The peak decides in which dtypes a case runs at all.
def test_check_names_a_peak_that_moved(copy: Path):
    golden = "      peak: 3\n      outputs:\n        output:\n          error_scale: 1.57"
    edit(copy, golden, golden.replace("peak: 3", "peak: 3.0e+39"))
    result = goldformer(copy, "--check")
    assert result.exit_code == 1, result.output
    assert ":4: sm-one-row-by-hand: peak" in result.output


def test_check_lets_a_scale_drift_by_what_another_machine_may_measure(copy: Path):
    edit(copy, "          error_scale: 1.57", "          error_scale: 1.58")
    assert goldformer(copy, "--check", "--case", "sm-one-row-by-hand").exit_code == 0


def test_check_finds_a_truth_that_flipped(copy: Path):
    path = copy / "cases/causal_mask.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("[true, false", "[true, true", 1), encoding="utf-8")
    result = goldformer(copy, "--check")
    assert result.exit_code == 1
    assert ":4: mask-causal-4: mask: golden values differ from those derived now\n" in result.output


def test_a_changed_input_must_be_derived_before_it_is_checked(copy: Path):
    edit(copy, "scores: {values: [0, 1, 3]}", "scores: {values: [0, 1, 2]}")
    result = goldformer(copy, "--check")
    assert result.exit_code == 2
    assert result.output == (
        f"goldformer: {copy.resolve()}/{SOFTMAX}:12: cases[0].golden: sm-one-row-by-hand: "
        "was changed after its golden values were derived: run goldformer derive\n"
    )
    result = goldformer(copy)
    assert result.exit_code == 0, result.output
    values = yaml.safe_load(files(copy)["softmax.yaml"])["cases"][0]["golden"]["outputs"]["output"]["values"]
    e = [1, math.e, math.exp(2)]
    assert values == pytest.approx([x / sum(e) for x in e], abs=1e-16)
    assert goldformer(copy, "--check").exit_code == 0


def test_an_unknown_case_is_refused_with_a_guess(copy: Path):
    result = goldformer(copy, "--case", "sm-one-row-by-hnd")
    assert result.exit_code == 2
    assert result.output == "goldformer: --case sm-one-row-by-hnd: did you mean sm-one-row-by-hand?\n"


# draw.py makes the inputs: a cache must not outlive a change of the generator.
@pytest.mark.parametrize(
    "name", ["formulas.py", "decoding_formulas.py", "balls.py", "draws.py", "matrices.py", "derive.py", "draw.py"]
)
def test_the_cache_is_stamped_with_the_source_that_values_follow_from(monkeypatch: pytest.MonkeyPatch, name):
    stamp, read = run._method_stamp(), Path.read_bytes
    assert run._method_stamp() == stamp
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"#" * (self.name == name))
    assert run._method_stamp() != stamp


def test_whoever_has_golden_values_is_derived_and_nobody_else(spec: Spec):
    assert [case.id for case in run.derivable(spec)] == [case.id for case in spec.cases.values() if case.golden]
    assert [case.id for case in run.derivable(spec, ["sm-four-axes", "sm-no-elements"])] == ["sm-four-axes"]


def test_processes_derive_what_one_does(copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    spec = load_spec.__wrapped__(copy)
    cases = run.derivable(spec, ["sm-one-row-by-hand", "sm-shifted-pair", "mask-causal-4"])
    outcomes = {o.case.id: o for o in run.derive_all(spec, cases, jobs=2, cache=None)}
    assert set(outcomes) == {case.id for case in cases}
    for case in cases:
        assert outcomes[case.id].derived == derive(case, spec.contracts[case.component], spec.conventions)
        assert not outcomes[case.id].cached
        assert run.moved(outcomes[case.id]) is None
