"""Golden values into their files and back: the writer's bytes, the proof of the digits, and `goldformer derive`."""

from __future__ import annotations

import json
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
from goldformer.spec import ROOT, Case, Spec, load_spec
from goldformer.spec.draw import Dyadic
from goldformer.spec.edition import Edition
from goldformer.spec.files import replace_file
from goldformer.spec.goldenfile import read_entries, read_header, render_golden
from goldformer.spec.making.promises import write_stamps
from goldformer.spec.model import ANY, Wanted
from goldformer.spec.oracle import balls, run
from goldformer.spec.oracle.derive import Derived, DerivedArray, derive
from goldformer.spec.oracle.write import number, write_golden
from spoiling import keep

# ── the writer ──

DIGEST = "0123456789abcdef"
SMALL = Edition("small", "1.0", DIGEST, "transformer.md")
PLAIN = Derived(2.5, 0.0, {ANY: {"output": DerivedArray((2,), ("0.25", "1.0000000000000000e-5"), 1.25)}})
ENTRY = {
    "derivation": DIGEST,
    "peak": 2.5,
    "outputs": {"output": {"error_scale": 1.25, "values": [0.25, 1e-5]}},
}
TEXT = """\
{
  "edition": "small",
  "version": "1.0",
  "component": "softmax",
  "cases": {
    "a": {
      "derivation": "0123456789abcdef",
      "peak": 2.5,
      "outputs": {
        "output": {
          "error_scale": 1.25,
          "values": [0.25, 1.0e-5]
        }
      }
    }
  }
}
"""


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """The folder of golden files of a spec."""
    folder = tmp_path / "golden"
    folder.mkdir()
    return folder


@pytest.fixture
def case(spec: Spec) -> Case:
    """A case whose id and expectation do not matter."""
    return spec.cases["sm-one-row-by-hand"]


def write(
    path: Path, case: Case, *ids: str, among: str = "", derived: Derived = PLAIN, wanted: Wanted | None = None
) -> bool:
    """Write derivations of some ids; the cases of the file are those among the words."""
    cases = {id_: replace(case, id=id_, expect={"output": wanted or Wanted("all")}) for id_ in among.split() or ids}
    return write_golden(path, SMALL, cases, dict.fromkeys(ids, (DIGEST, derived)))


def written(tmp_path: Path, case: Case, **more) -> dict[str, Any]:
    """The entry of a derivation, as YAML and JSON both read it."""
    path = tmp_path / "softmax.json"
    assert write(path, case, "a", **more)
    text = path.read_text(encoding="utf-8")
    read = json.loads(text)
    assert yaml.safe_load(text) == read
    assert repr(yaml.safe_load(text)) == repr(read)  # 1 is not 1.0
    entry: dict[str, Any] = read["cases"]["a"]
    return entry


def test_an_entry_is_written_with_one_key_and_one_array_a_line(tmp_path: Path, case: Case):
    assert written(tmp_path, case) == ENTRY
    assert (tmp_path / "softmax.json").read_text(encoding="utf-8") == TEXT


def test_other_entries_and_kills_stay_digit_for_digit(tmp_path: Path, case: Case):
    path = tmp_path / "softmax.json"
    write(path, case, "a", "b")
    before = path.read_text(encoding="utf-8").replace("1.25", "1.2500").replace("[0.25", "[2.5E-01")
    before = before.replace('"b": {', '"b": {\n      "kills": ["x", "y"],')
    path.write_text(before, encoding="utf-8")
    assert write(path, case, "b", among="a b c")
    after = path.read_text(encoding="utf-8")
    assert after[: after.index('"b"')] == before[: before.index('"b"')]
    entries = json.loads(after)["cases"]
    assert entries["b"] == {**ENTRY, "kills": ["x", "y"]}
    assert list(entries["b"])[-1] == "kills"
    assert "c" not in entries


def test_entries_stand_in_the_order_of_their_cases(tmp_path: Path, case: Case):
    path = tmp_path / "softmax.json"
    write(path, case, "c", "a", among="c a")
    write(path, case, "b", among="a b c")
    assert list(json.loads(path.read_text(encoding="utf-8"))["cases"]) == ["a", "b", "c"]


def test_what_no_longer_belongs_to_a_case_is_taken_out(tmp_path: Path, case: Case, spec: Spec):
    path = tmp_path / "softmax.json"
    write(path, case, "a", "b", "gone")
    path.write_text(
        path.read_text(encoding="utf-8").replace('"b": {', '"b": {\n      "kills": ["x"],'), encoding="utf-8"
    )
    refusal = replace(spec.cases["sm-no-elements"], id="b")
    assert write_golden(path, SMALL, {"a": replace(case, id="a"), "b": refusal}, {})
    assert json.loads(path.read_text(encoding="utf-8"))["cases"] == {"a": ENTRY, "b": {"kills": ["x"]}}


def test_writing_twice_changes_nothing(tmp_path: Path, case: Case):
    path = tmp_path / "softmax.json"
    assert write(path, case, "a")
    before = path.stat()
    assert not write(path, case, "a")
    assert path.read_text(encoding="utf-8") == TEXT
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_no_file_is_made_for_no_entries(tmp_path: Path, case: Case):
    assert not write_golden(tmp_path / "softmax.json", SMALL, {"a": case}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", sorted((ROOT / "golden").glob("*.json")), ids=lambda path: path.stem)
def test_every_golden_file_is_as_the_writer_leaves_it(path: Path):
    text = path.read_text(encoding="utf-8")
    assert render_golden(*read_header(path), path.stem, read_entries(path)) == text
    with (ROOT / "cases" / f"{path.stem}.yaml").open(encoding="utf-8") as stream:
        order = [case["id"] for case in yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["cases"]]
    assert [id_ for id_ in order if id_ in read_entries(path)] == list(read_entries(path))


# JSON is YAML: whoever has a YAML reader alone gets the same numbers.
def test_a_golden_file_is_yaml(spec: Spec):
    for component in ("softmax", "scaled_dot_product_attention", "xavier_uniform", "positional_encoding"):
        text = (ROOT / "golden" / f"{component}.json").read_text(encoding="utf-8")
        assert repr(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))) == repr(json.loads(text))


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
]


@pytest.mark.parametrize(("text", "expected", "value"), NUMBERS)
def test_a_number_is_written_as_yaml_reads_it(text, expected, value):
    assert number(text) == expected
    read = yaml.safe_load(number(text))
    assert read == value
    assert type(read) is type(value)


def test_nan_is_written_as_the_protocol_writes_it(tmp_path: Path, case: Case):
    derived = Derived(1.0, 0.0, {ANY: {"output": DerivedArray((2,), ("nan", "1"), 1.0)}})
    assert written(tmp_path, case, derived=derived)["outputs"]["output"]["values"] == ["NaN", 1]


def test_truths_are_written_as_json_has_them(tmp_path: Path, case: Case):
    derived = Derived(1.0, 0.0, {ANY: {"output": DerivedArray((2,), ("true", "false"), 0.0)}})
    assert written(tmp_path, case, derived=derived)["outputs"]["output"]["values"] == [True, False]


def test_every_double_comes_back_as_itself(tmp_path: Path, case: Case):
    random = np.random.default_rng(1)
    values = random.standard_normal(500) * 10.0 ** random.integers(-30, 30, 500)
    texts = tuple(flint.arb(v).mid().str(17, radius=False) for v in values.tolist())
    derived = Derived(1.0, 0.0, {ANY: {"output": DerivedArray((500,), texts, 1.0)}})
    assert written(tmp_path, case, derived=derived)["outputs"]["output"]["values"] == values.tolist()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (2, 1, 3), (1, 2, 3, 5), (3, 1, 1, 2), (2, 40)])
def test_arrays_of_any_rank_come_back_in_their_shape(tmp_path: Path, case: Case, shape):
    values = np.arange(math.prod(shape)).reshape(shape) / 8
    texts = tuple(map(repr, values.ravel().tolist()))
    derived = Derived(1.0, 0.0, {"one": {"output": DerivedArray(shape, texts, 0.0)}, "other": None})
    of_two = replace(case, conventions={"which": ("one", "other")})
    options = written(tmp_path, of_two, derived=derived)["options"]
    assert options == {"one": {"output": {"error_scale": 0, "values": values.tolist()}}, "other": "refused"}


def test_a_margin_stands_behind_the_peak(tmp_path: Path, case: Case):
    entry = written(tmp_path, case, derived=replace(PLAIN, margin=0.0123))
    assert list(entry.items())[1:3] == [("peak", 2.5), ("margin", 0.0123)]


def test_drawn_probes_stand_beside_their_values(tmp_path: Path, case: Case):
    places = tuple((0, k, 99 - k) for k in range(30))
    derived = Derived(1.0, 0.0, {ANY: {"output": DerivedArray((30,), tuple(map(str, range(30))), 2.0)}})
    for drawn in (True, False):
        wanted = Wanted("probes", places, drawn=drawn)
        output = written(tmp_path, case, derived=derived, wanted=wanted)["outputs"]["output"]
        assert output["values"] == list(range(30))
        assert output.get("at") == ([list(place) for place in places] if drawn else None)


def test_a_crash_while_writing_leaves_the_old_file_whole(tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "softmax.json"
    write(path, case, "a")

    def fail(self, target):
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"^the disk is full$"):
        write(path, case, "a", "b")
    assert path.read_text(encoding="utf-8") == TEXT
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
        derive(case, spec.contracts[case.component])


def test_balls_are_tight_by_far(spec: Spec):
    """Seventeen digits ask for 1e-17; the balls are tighter than 1e-60."""
    case = spec.cases["mha-distinct-sizes"]
    derived = derive(case, spec.contracts[case.component])
    assert 0 < derived.widest < 1e-60


def test_a_derivation_survives_its_cache(spec: Spec):
    case = spec.cases["pe-odd-5"]
    derived = derive(case, spec.contracts[case.component])
    assert Derived.from_json(yaml.safe_load(yaml.safe_dump(derived.as_json()))) == derived
    assert derived.options["refused"] is None


# ── the command ──

SOFTMAX = "cases/softmax.yaml"
GOLDEN = "golden/softmax.json"


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
    """A spec of two small case files, a cache of its own, and nothing remembered between two commands."""
    keep(spec_copy, ["softmax", "causal_mask"])
    write_stamps(load_spec.__wrapped__(spec_copy))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("goldformer.conformance.commands.derive.load_spec", load_spec.__wrapped__)
    monkeypatch.setattr(run, "make_pool", Inline)
    return spec_copy


def goldformer(copy: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["derive", "--spec", str(copy), *arguments])


def edit(copy: Path, old: str, new: str, file: str = GOLDEN) -> None:
    text = (copy / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")


def strip(copy: Path) -> None:
    """Take everything but the kills out of every golden file."""
    for path in (copy / "golden").iterdir():
        kills = {id_: {"kills": entry["kills"]} for id_, entry in read_entries(path).items() if "kills" in entry}
        path.write_text(render_golden(*read_header(path), path.stem, kills), encoding="utf-8")


def files(copy: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (copy / "golden").iterdir()}


def test_deriving_writes_what_is_shipped_and_check_then_proves_it(copy: Path):
    shipped = files(copy)
    strip(copy)
    assert "derivation" not in files(copy)["softmax.json"]
    result = goldformer(copy)
    assert result.exit_code == 0, result.output
    assert files(copy) == shipped
    assert f"wrote {copy.resolve()}/golden/softmax.json\n" in result.output
    result = goldformer(copy, "--check", "--no-cache")
    assert result.exit_code == 0, result.output
    assert re.fullmatch(
        r"proven: \d+ values of (\d+) cases, \1 cases derived now, widest ball \de-\d+, .* s\n", result.output
    )


def test_deriving_again_derives_nothing_and_changes_nothing(copy: Path, tmp_path: Path):
    first = goldformer(copy)
    assert re.search(r"^nothing changed: \d+ values of (\d+) cases, \1 cases derived now,", first.output), first.output
    cached = list((tmp_path / "cache/goldformer/derivations").glob("*.json"))
    assert len(cached) == int(re.search(r"of (\d+) cases", first.output)[1])
    shipped = files(copy)
    second = goldformer(copy)
    assert re.search(r"^nothing changed: \d+ values of \d+ cases, 0 cases derived now,", second.output), second.output
    assert second.output.split(",")[2] == first.output.split(",")[2]
    assert files(copy) == shipped
    assert ", 0 cases derived now," not in goldformer(copy, "--no-cache").output


def test_a_damaged_cache_is_derived_again(copy: Path, tmp_path: Path):
    """Losing the machine may leave half a file."""
    one = (copy, "--check", "--case", "sm-one-row-by-hand")
    assert ", 1 cases derived now," in goldformer(*one).output
    (stored,) = (tmp_path / "cache/goldformer/derivations").iterdir()
    whole = stored.read_bytes()
    for damaged in (b"", whole[:100], b"[1]", b"\xff", b"[" * 100_000):
        stored.write_bytes(damaged)
        again = goldformer(*one)
        assert (again.exit_code, ", 1 cases derived now," in again.output) == (0, True), again.output
        assert stored.read_bytes() == whole


def test_only_the_named_case_is_derived(copy: Path):
    shipped = files(copy)
    strip(copy)
    result = goldformer(copy, "--case", "sm-one-row-by-hand", "--no-cache")
    assert result.exit_code == 0, result.output
    assert "3 values of 1 cases, 1 cases derived now" in result.output
    assert files(copy)["softmax.json"].count("derivation") == 1
    end = shipped["softmax.json"].index('    "sm-several-rows"')
    assert files(copy)["softmax.json"][:end] == shipped["softmax.json"][:end]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("0.042010066134066051", "0.042010066134066151", "output: golden values differ from those derived now"),
        ("0.11419519938459448,", "0.11519519938459448,", "output: golden values differ from those derived now"),
        ('"error_scale": 1.57', '"error_scale": 1.7', "output: error scale 1.7 is 1.57 now"),
        ('"error_scale": 1.57', '"error_scale": 1.5', "output: error scale 1.5 is 1.57 now"),
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
    peak = '"derivation": "440635ba247026fa",\n      "peak": 3'
    edit(copy, peak, f"{peak}.0e+39")
    result = goldformer(copy, "--check")
    assert result.exit_code == 1, result.output
    assert ":4: sm-one-row-by-hand: peak" in result.output


def test_check_lets_a_scale_drift_by_what_another_machine_may_measure(copy: Path):
    edit(copy, '"error_scale": 1.57', '"error_scale": 1.58')
    assert goldformer(copy, "--check", "--case", "sm-one-row-by-hand").exit_code == 0


def test_check_finds_a_truth_that_flipped(copy: Path):
    path = copy / "golden/causal_mask.json"
    path.write_text(path.read_text(encoding="utf-8").replace("[true, false", "[true, true", 1), encoding="utf-8")
    result = goldformer(copy, "--check")
    assert result.exit_code == 1
    assert ":4: mask-causal-4: mask: golden values differ from those derived now\n" in result.output


def test_a_changed_input_must_be_derived_before_it_is_checked(copy: Path):
    edit(copy, "scores: {values: [0, 1, 3]}", "scores: {values: [0, 1, 2]}", SOFTMAX)
    result = goldformer(copy, "--check")
    assert result.exit_code == 2
    assert result.output == (
        f"goldformer: {copy.resolve()}/{SOFTMAX}:4: cases[0].id: sm-one-row-by-hand: "
        "was changed after its golden values were derived: run goldformer derive\n"
    )
    result = goldformer(copy)
    assert result.exit_code == 0, result.output
    entry = json.loads(files(copy)["softmax.json"])["cases"]["sm-one-row-by-hand"]
    values = entry["outputs"]["output"]["values"]
    e = [1, math.e, math.exp(2)]
    assert values == pytest.approx([x / sum(e) for x in e], abs=1e-16)
    assert goldformer(copy, "--check").exit_code == 0


def test_an_unknown_case_is_refused_with_a_guess(copy: Path):
    result = goldformer(copy, "--case", "sm-one-row-by-hnd")
    assert result.exit_code == 2
    assert result.output == "goldformer: --case sm-one-row-by-hnd: did you mean sm-one-row-by-hand?\n"


# draw.py makes the inputs: a cache must not outlive a change of the generator.
@pytest.mark.parametrize(
    "name", ["layers.py", "searches.py", "balls.py", "draws.py", "matrices.py", "derive.py", "draw.py"]
)
def test_the_cache_is_stamped_with_the_source_that_values_follow_from(monkeypatch: pytest.MonkeyPatch, name):
    stamp, read = run._method_stamp(), Path.read_bytes
    assert run._method_stamp() == stamp
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"#" * (self.name == name))
    assert run._method_stamp() != stamp


def test_whoever_has_golden_values_is_derived_and_nobody_else(spec: Spec):
    assert [case.id for case in run.list_derivable(spec)] == [case.id for case in spec.cases.values() if case.golden]
    assert [case.id for case in run.list_derivable(spec, ["sm-four-axes", "sm-no-elements"])] == ["sm-four-axes"]


def test_processes_derive_what_one_does(copy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    spec = load_spec.__wrapped__(copy)
    cases = run.list_derivable(spec, ["sm-one-row-by-hand", "sm-shifted-pair", "mask-causal-4"])
    outcomes = {o.case.id: o for o in run.derive_all(spec, cases, jobs=2, cache=None)}
    assert set(outcomes) == {case.id for case in cases}
    for case in cases:
        assert outcomes[case.id].derived == derive(case, spec.contracts[case.component])
        assert not outcomes[case.id].cached
        assert run.describe_move(outcomes[case.id]) is None


# ── inputs ──


def test_every_drawn_number_enters_the_derivation_exactly(spec: Spec) -> None:
    """Its shortest decimal form may be another number: that of a point of a fine grid is."""
    grids = {}
    for case in spec.cases.values():
        cotangent = {} if case.cotangent is None else {"cotangent": case.cotangent}
        drawn = (r for a in {**case.inputs, **case.params, **cotangent}.values() if isinstance(r := a.made_of, Dyadic))
        grids |= {recipe.grid: case.id for recipe in drawn}
    shortened = set()
    for (lo, hi, step), id_ in grids.items():
        # All that can be drawn, whatever is.
        for exactly in (lo + point * step for point in range(int((hi - lo) / step) + 1)):
            value = float(exactly)
            assert Fraction(value) == exactly
            assert balls.read(value) == flint.arb(value), (id_, value)
            if Fraction(repr(value)) != exactly:
                shortened.add(id_)
    assert shortened == {"ln-variance-of-one-trillionth"}


@pytest.mark.parametrize("value", [0.3, -0.1, 1e-6, 1e-12, 2.0**-24 + 1e-12])
def test_a_written_decimal_is_the_decimal_and_not_the_nearest_float(value: float) -> None:
    assert balls.read(value).overlaps(balls.ratio(Fraction(repr(value))))
    assert not balls.read(value).overlaps(flint.arb(value))
