"""Every known mistake is caught by whoever lists it, and the kill matrix says so in numbers and words."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.cli import main
from goldformer.conformance.commands import mistakes as command
from goldformer.conformance.commands._kill import (
    Kill,
    KillCheck,
    collect_kills,
    find_claiming_cases,
    measure,
    measure_all,
    select_cases_for,
)
from goldformer.conformance.diagnosis.failure import CLEAR
from goldformer.conformance.diagnosis.mistakes import Mistaken, implementations
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import Mistake, load_spec
from goldformer.spec.formulas.attention import softmax
from spoiled import spoil
from spoiling import edit, keep

LISTED = {id_ for case in load_spec().cases.values() for id_ in case.kills}
#: The others are shown by properties alone: what chance or a memory gives in a single call may be right.
CLAIMED = [id_ for id_ in implementations() if id_ in LISTED]


# ── the catalogue ──


@pytest.mark.sample(4)
@pytest.mark.parametrize("id_", CLAIMED)
def test_every_case_that_lists_it_catches_it(id_, spec):
    kill = measure(implementations()[id_], "float32", find_claiming_cases(spec.mistakes[id_], spec), spec)
    assert kill.is_caught
    assert [cell.check for cell in kill.false_claims] == []
    # The textbook has the default conventions.
    assert [id_ for id_ in kill.unmeasured if not spec.cases[id_].only_with] == []


@pytest.mark.sample(20)
@pytest.mark.parametrize("id_", CLAIMED)
def test_it_is_far_beyond_rounding(id_, spec):
    # One by one, as the first is enough.
    kills = (
        measure(implementations()[id_], "float64", [case], spec)
        for case in find_claiming_cases(spec.mistakes[id_], spec)
    )
    assert any(kill.margin >= CLEAR for kill in kills)


# ── one mistake ──


def only(spec, *ids):
    return [spec.cases[id_] for id_ in ids]


def checks(cells):
    return [cell.check for cell in cells]


def test_a_case_that_lists_it_fails_by_the_margin_of_its_verdict(spec):
    cases = only(spec, "sdpa-walkthrough-3x2", "sdpa-one-key")
    kill = measure(implementations()["scale-missing"], "float32", cases, spec)
    walkthrough, one_key = kill.cells
    assert (walkthrough.listed, walkthrough.killed, walkthrough.reason) == (True, True, "wrong-value")
    assert 1e5 < walkthrough.margin < math.inf
    # It asks for weights and output, which one key leaves as they are; the scaled scores show it all the same.
    assert (one_key.listed, one_key.killed) == (False, True)


@spoil(instead_of=softmax)
def raises(scores):
    raise ArithmeticError


def test_what_raises_is_killed_beyond_all_measure(spec):
    kill = measure(Mistaken("softmax-unstable", raises), "float32", only(spec, "sm-a-thousand"), spec)
    assert [(cell.killed, cell.margin, cell.reason) for cell in kill.cells] == [(True, math.inf, "raised")]


class Nothing:
    ARRAYS = "numpy"


def test_what_is_not_there_is_not_caught(spec):
    kill = measure(Mistaken("softmax-unstable", Nothing), "float32", only(spec, "sm-a-thousand"), spec)
    assert (kill.is_caught, kill.cells, kill.unmeasured) == (False, (), ("sm-a-thousand",))


def test_a_case_that_the_dtype_cannot_hold_is_not_measured(spec):
    kill = measure(implementations()["ln-square"], "float16", only(spec, "ln-large"), spec)
    assert (kill.cells, kill.unmeasured) == ((), ("ln-large",))


def test_right_code_makes_every_claim_untrue(spec):
    cases = find_claiming_cases(spec.mistakes["relu-bwd"], spec)
    kill = measure(Mistaken("relu-bwd", build_textbook), "float32", cases, spec)
    assert "ffn-gradient" in checks(kill.false_claims)
    assert not kill.is_caught


def test_a_mistake_is_measured_in_a_dtype_in_which_it_is_one(spec):
    mistaken = implementations()["fill-1e9-fp16"]
    cases = find_claiming_cases(spec.mistakes[mistaken.id], spec)
    assert (measure(mistaken, "float32", cases, spec).dtype, mistaken.find_dtype("float16")) == ("float16", "float16")
    everywhere = Mistaken("fill-1e9-fp16", mistaken.make)
    assert everywhere.find_dtype("float32") == "float32"
    assert not measure(everywhere, "float32", cases, spec).is_caught


def test_what_no_case_lists_is_judged_by_the_properties_that_do(spec):
    mistaken = implementations()["nondeterminism"]

    def kill(*catches):
        repeat = spec.properties["repeat-calls"].model_copy(update={"catches": catches})
        return measure(mistaken, "float32", [], replace(spec, properties={"repeat-calls": repeat}))

    (cell,) = kill("nondeterminism").by
    assert (cell.check, cell.kind, cell.component) == ("repeat-calls", "property", "scaled_dot_product_attention")
    assert cell.margin >= CLEAR
    assert not kill().is_caught


def test_a_mistake_may_show_in_its_component_in_what_is_built_of_it_and_where_it_is_listed(spec):
    able = select_cases_for(spec.mistakes["ffn-no-relu"], spec)
    assert {case.component for case in able} == {
        *("feed_forward", "encoder_layer", "decoder_layer", "encoder", "decoder"),
        *("transformer", "greedy_decode", "beam_search"),
    }
    full = spec.cases["tf-n9-shapes"]
    assert full not in able
    listing = replace(full, kills=("ffn-no-relu",))
    assert listing in select_cases_for(spec.mistakes["ffn-no-relu"], replace(spec, cases={listing.id: listing}))
    elsewhere = replace(spec.cases["sm-a-thousand"], kills=("ffn-no-relu",))
    assert elsewhere in select_cases_for(spec.mistakes["ffn-no-relu"], replace(spec, cases={elsewhere.id: elsewhere}))


def test_several_processes_give_what_one_gives(spec_copy):
    # Each process reads the spec, so it is a small one.
    keep(spec_copy, ["kl_divergence"])
    spec = load_spec(spec_copy)
    several, alone = ([*measure_all(spec, ["kl-row-mean", "kl-reversed"], "float32", jobs)] for jobs in (2, 1))
    assert several == alone
    assert [kill.mistake.id for kill in several] == ["kl-row-mean", "kl-reversed"]


# ── judgement, on verdicts made up ──


def known(id_):
    return Mistake.model_construct(id=id_, component="softmax", title=f"{id_} & <others>", hint="Do not.")


def shot(check, margin, *, listed=True, component="softmax"):
    """A cell of a case that fails by a margin, or passes below 1."""
    killed = margin > 1
    return KillCheck(check, "case", component, listed, killed, margin, "wrong-value" if killed else "")


def kill(id_, *cells, unmeasured=()):
    return Kill(known(id_), "float32", cells, unmeasured)


def test_only_a_check_that_lists_a_mistake_catches_it():
    one = kill("one", shot("a", 20), shot("b", 300), shot("c", 0.3), shot("d", 1e6, listed=False))
    assert (one.is_caught, one.margin) == (True, 300)
    assert (checks(one.by), checks(one.false_claims)) == (["b", "a"], ["c"])
    unlisted = kill("two", shot("d", 1e6, listed=False))
    assert (unlisted.is_caught, unlisted.margin) == (False, 0)


@pytest.fixture
def case(spec):
    def make(id_, *catches, component="softmax"):
        return replace(spec.cases["sm-a-thousand"], id=id_, component=component, meant_for=(), kills=catches)

    return make


# ── what is written ──


@pytest.fixture
def of_cases(spec):
    """The spec with other cases and without properties."""

    def make(*cases):
        return replace(spec, cases={case.id: case for case in cases}, properties={})

    return make


def test_claims_are_written_that_are_true(case, of_cases):
    a, b, c = case("a", "one", "two"), replace(case("b", "two"), meant_for=("one",)), case("c", "one")
    one = kill("one", shot("a", 0.5), shot("b", 2))
    assert collect_kills([one], of_cases(a, b, c)) == {"a": ("two",), "b": ("two", "one")}


def test_what_nothing_reveals_yet_is_written_wherever_a_case_fails_for_it_by_far(case, of_cases):
    cases = case("a", "one"), replace(case("b"), meant_for=("new",)), case("c"), case("d")
    new = kill("new", shot("a", 50, listed=False), shot("b", 2), shot("c", 9, listed=False), shot("d", 0, listed=False))
    assert collect_kills([new], of_cases(*cases)) == {"a": ("one", "new"), "b": ("new",), "c": (), "d": ()}


def test_what_is_new_is_written_to_a_bad_input_that_it_accepts(case, of_cases):
    bad = [replace(case(name), error="x") for name in ("a", "b")]
    refused, accepted = shot("a", math.inf, listed=False), replace(shot("b", math.inf, listed=False), reason="no-error")
    assert collect_kills([kill("new", refused, accepted)], of_cases(*bad)) == {"a": (), "b": ("new",)}


def test_what_is_known_spreads_to_no_case_that_does_not_claim_it(case, of_cases, spec):
    one = kill("one", shot("a", 50, listed=False), shot("b", 50))
    assert collect_kills([one], of_cases(case("a", "two"), case("b", "one"))) == {"a": ("two",), "b": ("one",)}
    caught = spec.properties["sm-shift"].model_copy(update={"catches": ("new",)})
    by_a_property = replace(of_cases(case("a")), properties={"sm-shift": caught})
    assert collect_kills([kill("new", shot("a", 50, listed=False))], by_a_property) == {"a": ()}


def test_what_is_known_spreads_to_a_new_case_that_fails_for_it_by_far(case, of_cases):
    cases = case("a"), case("b", "one"), case("c")
    one = kill("one", shot("a", 50, listed=False), shot("b", 50), shot("c", 2, listed=False))
    assert collect_kills([one], of_cases(*cases)) == {"a": ("one",), "b": ("one",), "c": ()}


# ── the command ──


def mistakes(*arguments):
    return CliRunner().invoke(main, ["mistakes", *arguments])


def lines(result):
    return [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()]


def test_the_catalogue_is_listed(spec):
    result = mistakes()
    assert (result.exit_code, result.stderr) == (0, "")
    heading, *rows = lines(result)
    assert heading == ["mistake", "component", "title"]
    assert rows == [[m.id, m.component, m.title] for m in spec.mistakes.values()]


def test_some_of_it_is_listed(spec):
    assert [row[0] for row in lines(mistakes("scale-missing", "bn-for-ln"))[1:]] == ["scale-missing", "bn-for-ln"]
    of_two = [m.id for m in spec.mistakes.values() if m.component in ("softmax", "causal_mask")]
    assert [row[0] for row in lines(mistakes("--component", "softmax,causal_mask"))[1:]] == of_two


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["scale-mising"], "no such mistake scale-mising: did you mean scale-missing?"),
        (["--component", "softmx"], "--component softmx: did you mean softmax?"),
        (["scale-missing", "--component", "softmax"], "no such mistake is in softmax"),
        (["scale-missing", "--write"], "--write writes what the kill matrix measures: add --matrix"),
    ],
)
def test_what_cannot_be_done_is_2_and_said(arguments, says):
    result = mistakes(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"goldformer: {says}\n")


def test_mistakes_that_are_caught_are_0(spec):
    result = mistakes("--matrix", "kl-reversed", "--jobs", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    heading, (id_, component, caught, margin, _), *_ = lines(result)
    assert heading == ["mistake", "component", "caught by", "margin", "cases"]
    kill = measure(
        implementations()["kl-reversed"], "float32", find_claiming_cases(spec.mistakes["kl-reversed"], spec), spec
    )
    assert (id_, component, caught) == ("kl-reversed", "kl_divergence", f"{len(kill.by)} of {len(kill.by)}")
    assert margin == format_ratio(kill.margin)
    assert re.search(
        r"\n- 1 of 1 mistakes are caught in float32, the least margin is \S+ \(kl-reversed\)\n", result.stdout
    )
    assert not re.search("not caught|untrue", result.stdout)


MADE_UP = (
    kill(
        "one",
        shot("sm-a-thousand", 20),
        shot("b", math.inf),
        shot("sm-shifted-pair", 0.25),
        unmeasured=("sm-gradient",),
    ),
    replace(kill("two", shot("sm-a-thousand", 3e5, listed=False)), dtype="float16"),
    kill("three", shot("b", 0.5)),
)


def test_what_is_wrong_is_1_and_told(monkeypatch):
    monkeypatch.setattr(command, "measure_all", lambda *_: MADE_UP)
    result = mistakes("--matrix")
    assert result.exit_code == 1
    assert lines(result)[1:4] == [
        ["one", "softmax", "2 of 3", "∞", "b, sm-a-thousand"],
        ["two", "softmax", "0 of 0", "0", "nothing"],
        ["three", "softmax", "0 of 1", "0", "nothing"],
    ]
    assert result.stdout.split("\n\n")[1] == (
        "- 1 of 3 mistakes are caught in float32, the least margin is ∞ (one)\n"
        "- measured in another dtype, as they do not show in float32: two in float16\n"
        "- not caught: two: no check that can be judged lists it\n"
        "- not caught: three: no check that lists it fails\n"
        "- untrue: sm-shifted-pair lists one and passes in float32, margin 0.25\n"
        "- untrue: b lists three and passes in float32, margin 0.5\n"
    )


def test_kills_are_written_into_the_golden_files_and_nothing_else_moves(spec_copy):
    golden = spec_copy / "golden" / "softmax.json"
    shipped = golden.read_text(encoding="utf-8")
    command = ("softmax-whole-array", "--matrix", "--write", "--jobs", "1", "--spec", str(spec_copy))
    keep(spec_copy, ["softmax"])
    result = mistakes(*command)
    assert result.exit_code == 0, result.output
    assert "- kills written: 0 more, 0 fewer\n" in result.output
    assert golden.read_text(encoding="utf-8") == shipped
    edit(spec_copy, "golden/softmax.json", '"kills": ["softmax-whole-array"]', '"kills": ["scale-missing"]')
    load_spec.cache_clear()
    result = mistakes(*command)
    assert "- kills written: 1 more, 0 fewer\n" in result.output
    assert f"- wrote {golden.resolve()}\n" in result.output
    expected = shipped.replace(
        '"kills": ["softmax-whole-array"]', '"kills": ["scale-missing", "softmax-whole-array"]', 1
    )
    assert golden.read_text(encoding="utf-8") == expected
