"""Every known mistake is caught by whoever lists it, and the kill matrix says so in numbers, words and JSON."""

from __future__ import annotations

import json
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
    KillMatrix,
    build_kill_matrix,
    collect_kills,
    find_claiming_cases,
    find_redundant_cases,
    measure,
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
    chosen = [spec.mistakes[id_] for id_ in ("kl-row-mean", "kl-reversed")]
    seen = []

    def watch(kills, total):
        for kill in kills:
            seen.append((kill.mistake.id, total))
            yield kill

    several = build_kill_matrix(spec, chosen, "float32", 2, watch)
    alone = build_kill_matrix(spec, chosen, "float32", 1)
    assert several.kills == alone.kills
    assert sorted(seen) == [("kl-reversed", 2), ("kl-row-mean", 2)]
    assert [kill.mistake.id for kill in several.kills] == ["kl-row-mean", "kl-reversed"]


# ── judgement, on verdicts made up ──


def known(id_):
    return Mistake.model_construct(id=id_, component="softmax", title=f"{id_} & <others>", hint="Do not.")


def shot(check, margin, *, listed=True, component="softmax"):
    """A cell of a case that fails by a margin, or passes below 1."""
    killed = margin > 1
    return KillCheck(check, "case", component, listed, killed, margin, "wrong-value" if killed else "")


def kill(id_, *cells, unmeasured=()):
    return Kill(known(id_), "float32", cells, unmeasured)


def matrix(*kills, redundant=None, not_made=()):
    return KillMatrix("float32", kills, not_made, redundant or {}, 1.25)


def test_only_a_check_that_lists_a_mistake_catches_it():
    one = kill("one", shot("a", 20), shot("b", 300), shot("c", 0.3), shot("d", 1e6, listed=False))
    assert (one.is_caught, one.margin) == (True, 300)
    assert (checks(one.by), checks(one.false_claims), checks(one.surprises)) == (["b", "a"], ["c"], ["d"])
    unlisted = kill("two", shot("d", 1e6, listed=False))
    assert (unlisted.is_caught, unlisted.margin) == (False, 0)


def test_a_matrix_is_proven_when_all_is_caught_and_every_claim_is_true():
    good, untrue = kill("one", shot("a", 20)), kill("two", shot("a", 30), shot("b", 0.5))
    unseen = kill("three", shot("a", 20, listed=False))
    assert matrix(good).is_proven
    assert not matrix(good, untrue).is_proven
    assert [(k.mistake.id, cell.check) for k, cell in matrix(good, untrue).false_claims] == [("two", "b")]
    assert not matrix(good, unseen).is_proven
    assert matrix(good, unseen).not_caught == (unseen,)
    assert matrix(good, unseen, kill("four", shot("a", 12))).least.mistake.id == "four"
    assert matrix(unseen).least is None


@pytest.fixture
def case(spec):
    def make(id_, *catches, component="softmax"):
        return replace(spec.cases["sm-a-thousand"], id=id_, component=component, meant_for=(), kills=catches)

    return make


def test_a_case_is_redundant_when_others_of_its_component_kill_all_that_it_lists(case):
    a, b = case("a", "one"), case("b", "one", "two")
    one = kill("one", shot("a", 50), shot("b", 200))
    two = kill("two", shot("a", 0.1, listed=False), shot("b", 200))
    assert find_redundant_cases([one, two], [a, b]) == {"softmax": ("a",)}
    # What fails without saying so kills as well.
    two_by_both = kill("two", shot("a", 70, listed=False), shot("b", 200))
    assert find_redundant_cases([one, two_by_both], [a, b]) == {"softmax": ("a", "b")}


def test_a_narrow_margin_makes_up_for_no_case(case):
    one = kill("one", shot("a", 50), shot("b", 9.9, listed=False))
    assert find_redundant_cases([one], [case("a", "one"), case("b")]) == {}


def test_a_case_of_another_component_makes_up_for_none(case):
    one = kill("one", shot("a", 50), shot("b", 50, component="beam_search"))
    assert find_redundant_cases([one], [case("a", "one"), case("b", "one", component="beam_search")]) == {}


def test_nothing_is_said_of_a_case_that_was_not_measured_on_all_that_it_lists(case):
    one = kill("one", shot("a", 50), shot("b", 50))
    two = kill("two", shot("b", 50, listed=False), unmeasured=("a",))
    a, b = case("a", "one", "two"), case("b", "one")
    assert find_redundant_cases([one], [a, b]) == find_redundant_cases([one, two], [a, b]) == {"softmax": ("b",)}


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
        (["--json", "a.json"], "--json saves the kill matrix: add --matrix"),
        (["--matrix", "--json", "no/a.json"], "--json no/a.json: there is no folder no"),
    ],
)
def test_what_cannot_be_done_is_2_and_said(arguments, says):
    result = mistakes(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"goldformer: {says}\n")


def test_a_dtype_that_numpy_has_not_is_2():
    assert mistakes("--matrix", "--dtype", "bfloat16").exit_code == 2


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
    assert "\n- not caught: none\n- untrue claims: none\n" in result.stdout


@pytest.fixture
def made_up(monkeypatch):
    """Run `goldformer mistakes --matrix` on a matrix made up."""

    def run(made, *arguments):
        monkeypatch.setattr(command, "build_kill_matrix", lambda *_: made)
        return mistakes("--matrix", *arguments)

    return run


TOLD = matrix(
    kill(
        "one",
        shot("sm-a-thousand", 20),
        shot("b", math.inf),
        shot("sm-shifted-pair", 0.25),
        unmeasured=("sm-gradient",),
    ),
    replace(kill("two", shot("sm-a-thousand", 3e5, listed=False)), dtype="float16"),
    kill("three", shot("b", 0.5)),
    redundant={"softmax": ("b",)},
    not_made=(known("four"),),
)


def test_what_is_wrong_is_1_and_told(made_up, spec):
    result = made_up(TOLD)
    assert result.exit_code == 1
    assert lines(result)[1:4] == [
        ["one", "softmax", "2 of 3", "∞", "b, sm-a-thousand"],
        ["two", "softmax", "0 of 0", "0", "nothing"],
        ["three", "softmax", "0 of 1", "0", "nothing"],
    ]
    assert result.stdout.split("\n\n")[1] == (
        "- 1 of 3 mistakes are caught in float32, the least margin is ∞ (one)\n"
        "- measured in another dtype, as they do not show in float32: two in float16\n"
        "- not caught: 2\n"
        "  - two: no check that can be judged lists it\n"
        "  - three: no check that lists it fails\n"
        "- untrue claims: 2\n"
        "  - sm-shifted-pair lists one and passes in float32, margin 0.25\n"
        "  - b lists three and passes in float32, margin 0.5\n"
        "- cases whose kills other cases of their component all make too: 1\n"
        f"  - softmax, 1 of {len(spec.cases_of('softmax'))}: b\n"
        "- no code makes 1: four\n"
        "- 5 checks in 1.2 s\n"
    )


def test_nothing_to_measure_is_2(made_up):
    result = made_up(matrix(not_made=(known("four"), known("five"))))
    assert (result.exit_code, result.stderr) == (2, "goldformer: nothing to measure: no code makes four, five\n")


def test_the_whole_matrix_is_saved_as_json(made_up, tmp_path):
    path = tmp_path / "kills.json"
    result = made_up(TOLD, "--json", str(path))
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, f"- wrote {path}")
    saved = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert saved.keys() == {"dtype", "seconds", "proven", "mistakes", "not_caught", "redundant", "not_made"}
    assert (saved["proven"], saved["not_caught"], saved["not_made"]) == (False, ["two", "three"], ["four"])
    assert saved["redundant"] == {"softmax": ["b"]}
    one = saved["mistakes"][0]
    assert (one.pop("title"), len(one.pop("cells"))) == ("one & <others>", 3)
    assert one == {
        "mistake": "one", "component": "softmax", "dtype": "float32", "caught": True, "margin": "inf",
        "untrue": ["sm-shifted-pair"], "unclaimed": [], "unmeasured": ["sm-gradient"],
    }  # fmt: skip
    assert saved["mistakes"][1]["cells"] == [
        {"check": "sm-a-thousand", "kind": "case", "component": "softmax", "listed": False, "killed": True,
         "margin": 3e5, "reason": "wrong-value"},
    ]  # fmt: skip


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--write"], "--write writes what the kill matrix measures: add --matrix"),
        (
            ["--write", "--matrix", "--dtype", "float64"],
            "--write writes what the kill matrix measures in float32, not in float64: leave out --dtype",
        ),
    ],
)
def test_kills_are_written_as_float32_measures_them_alone(arguments, said):
    result = mistakes("scale-missing", *arguments)
    assert (result.exit_code, result.output) == (2, f"goldformer: {said}\n")
