"""The oracle's decoding against all sentences there are, its margins and ties, and what the suite makes of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import flint
import numpy as np
import pytest
import torch

import reference_functions
from drawn_scales import measure
from goldformer.adapters import DTYPES, Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.judging.cases import Bench, check_case, judge_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.invoke import NotCheckable, read_arguments
from goldformer.conformance.judging.tolerance import least_margin
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.subject import Subject
from goldformer.spec import Spec, draw, load_spec
from goldformer.spec.formulas.arrays import number
from goldformer.spec.model import Wanted
from goldformer.spec.oracle import balls
from goldformer.spec.oracle.derive import FORMULAS, GAPS, Derived, derive, down, evaluate
from goldformer.spec.oracle.draws import ROUNDOFF, SAMPLES, Draw, margin
from goldformer.spec.oracle.rounding import SLACK, UNIT_ROUNDOFF
from goldformer.spec.oracle.run import Outcome, describe_move
from spoiling import keep

GREEDY, BEAM = "greedy_decode", "beam_search"
BOS, PAD, EOS = 1, 0, 2
STACKS = {"num_heads": 1, "num_encoder_layers": 1, "num_decoder_layers": 1, "pad_id": PAD}
IDS = {"bos_id": BOS, "eos_id": EOS}
SIZES = {"vocab": 4, "heads": 1, "d_k": 2, "d_v": 3, "d_model": 4, "d_ff": 3}
SOURCE = np.array([[3, 1, 2], [2, 3, 0]])

textbook = build_textbook()


# ── the formulas, against the textbook's model and every sentence there is ──


@pytest.fixture(scope="module")
def params(spec: Spec):
    """64ths of ±1 for every parameter, and an output layer that tells the words apart."""
    random = np.random.default_rng(5)
    defaults = {name: convention.default for name, convention in spec.conventions.items()}
    specs = spec.contracts[GREEDY].params_under(STACKS, defaults)
    drawn = {name: random.integers(-64, 65, s.shape.sizes(SIZES, ())) / 64 for name, s in specs.items()}
    return drawn | {"w_vocab": drawn["w_vocab"] * 2}


def outputs(component, params, source=SOURCE, **more):
    """Return the outputs of the formula in balls."""
    conventions: dict[str, str] = {name: more.pop(name) for name in ("beam_finish", "length_penalty") if name in more}
    attributes = STACKS | IDS | more
    return evaluate(component, balls.exact, balls.read, {"source": source}, params, attributes, conventions)


def floats(array):
    return array.astype(np.float64)


def log_probabilities(params, source, words):
    logits = textbook.transformer(source[None], np.array([[BOS, *words]]), params=params, **STACKS)["logits"][0, -1]
    return logits - np.log(np.exp(logits).sum())


def sentence_score(params, source, words):
    return sum(log_probabilities(params, source, words[:t])[word] for t, word in enumerate(words))


def every_sentence(length):
    """All that end with eos_id or have `length` words."""
    for count in range(1, length + 1):
        for words in itertools.product(range(SIZES["vocab"]), repeat=count):
            if EOS not in words[:-1] and (words[-1] == EOS or count == length):
                yield words


def padded(words, length):
    return [*words, *[PAD] * (length - len(words))]


@pytest.mark.parametrize("max_length", [1, 2, 4])
def test_greedy_takes_the_best_word_at_each_step(params, max_length):
    got = outputs(GREEDY, params, max_length=max_length)
    for sample, source in enumerate(SOURCE):
        words: tuple[int, ...] = ()
        terms = []
        while len(words) < max_length and EOS not in words:
            following = log_probabilities(params, source, words)
            words = (*words, int(following.argmax()))
            terms.append(following.max())
        assert got["ids"][sample].tolist() == padded(words, max_length)
        assert floats(got["token_scores"][sample]) == pytest.approx(padded(terms, max_length), abs=1e-12)
        assert float(got["scores"][sample]) == pytest.approx(sum(terms), abs=1e-12)


PENALTIES = {"none": lambda n: 1, "mean": lambda n: n, "gnmt": lambda n: ((5 + n) / 6) ** 0.6}


@pytest.mark.sample(4)
# A beam that loses nothing finds the best of all sentences, whatever becomes of those that end.
@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("beam_finish", ["in_beam", "set_aside"])
@pytest.mark.parametrize("max_length", [2, 3])
def test_a_beam_that_keeps_everything_finds_the_best_of_all_sentences(params, max_length, beam_finish, length_penalty):
    how = {"beam_finish": beam_finish, "length_penalty": length_penalty}
    got = outputs(BEAM, params, max_length=max_length, beam_size=100, top_beams=5, **how)
    divisor = PENALTIES[length_penalty]
    for sample, source in enumerate(SOURCE):
        scored = [(sentence_score(params, source, w) / divisor(len(w)), w) for w in every_sentence(max_length)]
        best = sorted(scored, reverse=True)[:5]
        assert got["ids"][sample].tolist() == [padded(words, max_length) for _, words in best]
        assert floats(got["scores"][sample]) == pytest.approx([score for score, _ in best], abs=1e-12)


def searched(params, source, max_length, beam_size, divisor, *, set_aside):
    """BEAM-1 and BEAM-2 over a dictionary of sentences and sums; best first."""

    def best(sums, count):
        return dict(sorted(sums.items(), key=lambda item: -item[1] / divisor(len(item[0])))[:count])

    beam: dict[tuple[int, ...], float] = {(): 0.0}
    aside: dict[tuple[int, ...], float] = {}
    for _ in range(max_length):
        pool = {words: total for words, total in beam.items() if EOS in words}
        for words in beam.keys() - pool.keys():
            following = log_probabilities(params, source, words)
            pool |= {(*words, word): beam[words] + following[word] for word in range(SIZES["vocab"])}
        beam = best(pool, beam_size)
        if set_aside:
            aside |= {words: total for words, total in beam.items() if EOS in words}
            if len(aside) >= beam_size:
                return best(aside, beam_size)
            beam = best({words: total for words, total in pool.items() if EOS not in words}, beam_size)
    return best({**aside, **beam}, beam_size)


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("set_aside", [False, True])
@pytest.mark.parametrize("beam_size", [1, 2, 3])
def test_a_narrow_beam_finds_what_a_search_over_a_dictionary_finds(params, beam_size, set_aside, length_penalty):
    how = {"beam_finish": "set_aside" if set_aside else "in_beam", "length_penalty": length_penalty}
    got = outputs(BEAM, params, max_length=4, beam_size=beam_size, top_beams=beam_size, **how)
    for sample, source in enumerate(SOURCE):
        best = searched(params, source, 4, beam_size, PENALTIES[length_penalty], set_aside=set_aside)
        assert got["ids"][sample].tolist() == [padded(words, 4) for words in best]


def test_more_sentences_than_there_are_cannot_be_returned(params):
    with pytest.raises(ValueError, match=r"^top_beams is 5, but the search ends with 4 sentences$"):
        outputs(BEAM, params, max_length=1, beam_size=5, top_beams=5)


def test_a_sentence_read_at_once_has_the_scores_it_was_written_with(params):
    written = outputs(GREEDY, params, max_length=4)
    arguments = ({"source": SOURCE, "ids": written["ids"]}, params, STACKS | {"bos_id": BOS}, {})
    read = evaluate("teacher_forced", balls.exact, balls.read, *arguments)["log_probabilities"]
    for sample, row in enumerate(written["ids"]):
        count = [*row.tolist(), EOS].index(EOS) + 1
        terms = [float(read[sample, t, word]) for t, word in enumerate(row[:count])]
        assert floats(written["token_scores"][sample])[:count] == pytest.approx(terms, abs=1e-14)


# ── what a decision leaves ──


def test_greedy_leaves_one_gap_for_each_word(params):
    got = outputs(GREEDY, params, max_length=3)
    gaps = iter(floats(got[GAPS]))
    for sample, source in enumerate(SOURCE):
        words = [*got["ids"][sample].tolist(), EOS]
        for t in range(min(words.index(EOS) + 1, 3)):
            first, second = sorted(log_probabilities(params, source, words[:t]), reverse=True)[:2]
            assert next(gaps) == pytest.approx(first - second, abs=1e-12)
    assert next(gaps, None) is None


@pytest.mark.parametrize("beam_finish", ["in_beam", "set_aside"])
def test_a_beam_leaves_the_gaps_on_which_the_result_depends(params, beam_finish):
    """Two words, one step: who is kept is who is returned, and their order and the first outside decide it."""
    got = outputs(BEAM, params, SOURCE[:1], max_length=1, beam_size=2, top_beams=2, beam_finish=beam_finish)
    first, second, third, _ = sorted(log_probabilities(params, SOURCE[0], ()), reverse=True)
    gaps = floats(got[GAPS])
    assert gaps.min() >= 0
    assert {round(first - second, 10), round(second - third, 10)} <= set(gaps.round(10))


# ── margins ──


def gap(value, *roundoffs):
    """A gap whose first samples move by so many roundoffs."""
    samples = np.full(SAMPLES, float(value))
    samples[: len(roundoffs)] += np.array(roundoffs) * ROUNDOFF
    return Draw(samples)


def test_a_margin_is_the_smallest_gap_over_its_own_error_scale():
    gaps = np.array([gap(1, 10, -20), gap(0.25, -2), gap(3, 200)], dtype=object)
    golden = np.array([1, 0.25, 3])
    assert margin(gaps, golden) == pytest.approx(3 / 200, rel=1e-6)
    assert margin(gaps[:2], golden[:2]) == pytest.approx(1 / 20, rel=1e-6)


def test_one_roundoff_moves_an_exact_gap_too():
    assert margin(np.array([gap(2), gap(0.5)], dtype=object), np.array([2.0, 0.5])) == 1.0


def test_without_decisions_there_is_no_margin(params):
    assert margin(np.empty(0, dtype=object), np.empty(0)) == math.inf
    scores = {"scores": np.ones((2, 3))}
    assert measure("softmax", scores, {}, {}, {}).margin == math.inf


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.031299, 0.0312), (0.004, 0.004), (1.2345e-9, 1.23e-9), (0.999, 0.999)]
)
def test_a_stored_margin_is_short_and_no_larger_than_measured(value, rounded):
    assert down(value) == rounded


def test_a_margin_needs_no_proof_to_be_measured(spec: Spec):
    case = spec.cases["greedy-ends-at-step-2"]
    chosen = {k: v for k, v in case.only_with.items() if k in spec.contracts[GREEDY].conventions}
    measured = measure(GREEDY, case.input_arrays, case.param_arrays, case.attributes, chosen)
    # The mean of 64 samples, which stands for the golden gap, strays from it by an eighth of their deviation and more.
    assert measured.margin == pytest.approx(case.golden.margin, rel=0.2)
    assert set(measured.scales) == {"scores", "token_scores"}


# ── cases by hand: the output layer alone decides ──


@pytest.fixture
def made(spec: Spec):
    """A case whose logits are b_vocab at every step."""

    def make(logits, *, w_vocab=0.0, component=GREEDY, expect=("ids", "scores"), clauses=("DEC-2",), **attributes):
        base = spec.cases["greedy-equals-ids" if component == GREEDY else "beam-equals-ids"]
        fills: dict[str, draw.Argument] = {
            "w_vocab": draw.Argument(draw.Fill(fill=w_vocab), (4, 8)),
            "b_vocab": draw.Argument.of(np.array(logits, dtype=np.float64)),
        }
        return replace(
            base, id="made", clauses=clauses, params={**base.params, **fills}, golden=None, base=None,
            attributes={**base.attributes, **attributes}, expect={name: Wanted("all") for name in expect},
        )  # fmt: skip

    return make


def derived(case, spec, *, advice=False):
    return derive(case, spec.contracts[case.component], advice=advice)


def test_a_margin_by_hand(made, spec: Spec):
    """The gap is 1/4, log-probabilities of about −1 each round: it bears between a tenth and a roundoff."""
    result = derived(made([0, 0, 0, 2, 1.75, 0, 0, 0]), spec)
    scale = 0.25 / result.margin
    log_probability = -math.log(1 + math.exp(-0.25) + 6 * math.exp(-2))
    # Two numbers that are rounded a few times each, and no more than that.
    assert abs(log_probability) < scale < 8 * (abs(log_probability) + 0.25)
    assert result.options[""]["ids"].values == ("3",) * 6


def test_a_nearer_rival_halves_the_margin(made, spec: Spec):
    near, far = (derived(made([0, 0, 0, 2, 2 - gap, 0, 0, 0]), spec).margin for gap in (2**-6, 2**-5))
    assert near / far == pytest.approx(0.5, rel=0.1)


TIE = [0, 0, 0, 2, 1, 2, 0, 2]


def test_ids_that_a_tie_decides_are_refused(made, spec: Spec):
    message = (
        r"^made: 6 of its 6 decisions are between exactly equal candidates: ask for no ids, or cite only clauses that "
    )
    with pytest.raises(balls.Unproven, match=message + "are SHOULD$"):
        derived(made(TIE), spec)


def test_ids_that_a_tie_decides_are_the_lowest_as_advice(made, spec: Spec):
    result = derived(made(TIE, expect=("ids",)), spec, advice=True)
    assert result.options[""]["ids"].values == ("3",) * 6
    assert result.margin is None


def test_scores_that_no_tie_decides_are_derived(made, spec: Spec):
    result = derived(made(TIE, expect=("scores",)), spec)
    score = 3 * (2 - math.log(3 * math.exp(2) + math.e + 4))
    assert [float(v) for v in result.options[""]["scores"].values] == pytest.approx([score, score], rel=1e-15)
    assert (result.margin, result.options[""]["scores"].error_scale < 100) == (None, True)


def test_a_tie_beside_another_decision_leaves_its_margin(made, spec: Spec):
    """Three beams, two of them equal: which of the equals comes first is open, that both are kept is not."""
    logits = [0, 0, 0, 2, 1, 2, 0.5, 0]
    case = made(logits, component=BEAM, expect=("scores",), max_length=1, beam_size=3, top_beams=3)
    result = derived(replace(case, sizes={**case.sizes, "top_beams": 3, "max_length": 1}), spec)
    assert result.margin is not None
    with pytest.raises(balls.Unproven, match=r"^made: 2 of its \d decisions are between exactly equal candidates: ask"):
        derived(replace(case, expect={"ids": Wanted("all")}), spec)


# Where the words after a tie depend on it, so may the score.
def test_scores_that_a_tie_decides_are_refused(made, spec: Spec, monkeypatch: pytest.MonkeyPatch):
    case = made(TIE, expect=("scores",))

    def parts_ways(source, **rest):
        chosen = FORMULAS["greedy_decode_proper"](source, **rest)
        first = chosen["ids"][:, :1]
        return chosen | {"scores": np.where(first[:, 0] == 3, chosen["scores"], chosen["scores"] * number(2))}

    monkeypatch.setitem(FORMULAS, "greedy_decode_proper", FORMULAS[GREEDY])
    monkeypatch.setitem(FORMULAS, GREEDY, parts_ways)
    message = r"are between exactly equal candidates, and what is expected depends on which of them is chosen$"
    with pytest.raises(balls.Unproven, match=message):
        derived(case, spec)


# ── what is not certain ──


@pytest.fixture
def with_gaps(made, spec: Spec, monkeypatch: pytest.MonkeyPatch):
    """Derive a plain case as if its decisions had left these gaps, in balls and in draws."""

    def run(proven, drawn):
        proper = FORMULAS[GREEDY]

        def formula(source, **rest):
            gaps = np.empty(1, dtype=object)
            gaps[0] = proven if isinstance(number(0)[()], flint.arb) else drawn
            return proper(source, **rest) | {GAPS: gaps}

        monkeypatch.setitem(FORMULAS, GREEDY, formula)
        return derived(made([0, 0, 0, 2, 1, 0, 0, 0]), spec)

    return run


def test_a_gap_that_may_be_none_is_unproven(with_gaps):
    wide = flint.arb(0, 1e-20)
    with pytest.raises(balls.Unproven, match="is not proven to be"):
        with_gaps(wide, gap(0))


def test_a_gap_the_wrong_way_is_unproven(with_gaps):
    with pytest.raises(balls.Unproven, match=r"^made: a candidate was chosen over one that is better by 1e-20$"):
        with_gaps(flint.arb("-1e-20"), gap(0))


def test_a_proven_gap_passes(with_gaps):
    assert with_gaps(flint.arb(1), gap(1, 4)).margin == 0.25


# Two logits that differ by 1e-13 are further apart than any proof needs, and closer than what draws tell apart.
def test_decisions_that_rounding_makes_are_unproven(made, spec: Spec):
    nearest = [0, 0, 0, 2, math.nextafter(2, 3), 0, 0, 0]
    seeds = [derived_or_unproven(made(nearest, max_length=length), spec) for length in (1, 2, 3, 4)]
    assert "rounding chooses between them" in " ".join(map(str, seeds))


def derived_or_unproven(case, spec):
    try:
        return derived(replace(case, sizes={**case.sizes, "max_length": case.attributes["max_length"]}), spec).margin
    except balls.Unproven as unproven:
        return unproven


# ── the margin in files ──


def test_a_margin_survives_the_cache_and_its_absence_too():
    for margin_ in (0.0123, None):
        result = Derived(1.0, 0.0, {}, margin_)
        assert Derived.from_json(result.as_json()) == result


@pytest.mark.parametrize(
    ("now", "said"),
    [(0.0032, None), (0.00321, None), (0.004, "margin 0.0032 is 0.004 now"), (None, "margin 0.0032 is None now")],
)
def test_a_margin_that_moved_is_told(spec: Spec, now, said):
    case = spec.cases["greedy-ends-at-step-2"]
    assert case.golden.margin == 0.0032
    result = derived(case, spec)
    assert describe_move(Outcome(case, "", replace(result, margin=now), cached=False)) == said


def test_every_decision_of_the_suite_is_one_that_float32_makes(spec: Spec):
    cases = [*spec.cases_of(GREEDY), *spec.cases_of(BEAM)]
    margins = {case.id: case.golden.margin for case in cases if case.golden and "ids" in case.expect}
    undecided = {id_ for id_, stored in margins.items() if stored is None}
    assert undecided == {"greedy-equals-ids", "beam-equals-ids"}
    assert all(stored > least_margin("float32") for id_, stored in margins.items() if id_ not in undecided)
    assert any(stored > least_margin("bfloat16") for id_, stored in margins.items() if id_ not in undecided)


def test_the_tie_rule_reaches_the_command(spec_copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A case of ids at a tie that cites a MUST is refused by its name, also when the cache has it as advice."""
    from click.testing import CliRunner

    from goldformer.conformance.cli import main

    keep(spec_copy, [GREEDY])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("goldformer.conformance.commands.derive.load_spec", load_spec.__wrapped__)
    command = ["derive", "--spec", str(spec_copy), "--case", "greedy-equals-ids"]
    assert CliRunner().invoke(main, command).exit_code == 0
    path = spec_copy / "cases" / "greedy_decode.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count("clauses: [DEC-6]") == 1
    path.write_text(text.replace("clauses: [DEC-6]", "clauses: [DEC-6, DEC-2]"), encoding="utf-8")
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert result.output.startswith("goldformer: greedy-equals-ids: 6 of its 6 decisions are between exactly equal")


# ── the engine ──


@pytest.fixture
def bench_of(spec: Spec):
    def make(dtype="float32", *, strict=False, conventions=None, arrays="torch", **functions):
        thing = SimpleNamespace(ARRAYS=arrays, NAME="mine", CONVENTIONS=conventions or {}, **functions)
        return Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu", Policy(strict=strict))

    return make


def never(**call):
    raise AssertionError("was called")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_case_is_skipped_where_rounding_may_turn_a_decision(bench_of, spec: Spec, dtype):
    ran = []

    def greedy_decode(**call):
        ran.append(call)
        return reference_functions.greedy_decode(**call)

    case = spec.cases["greedy-ends-at-step-2"]
    verdict = check_case(case, bench_of(dtype, greedy_decode=greedy_decode))
    if case.golden.margin > 2 * SLACK * UNIT_ROUNDOFF[dtype]:
        assert verdict.status is Status.PASSED
        assert ran
    else:
        assert (verdict.status, verdict.reason, ran) == (Status.SKIPPED, "dtype", [])
        needed = {"float16": "0.00391", "bfloat16": "0.0312"}[dtype]
        assert verdict.message == (
            f"the best candidates lie too close for {dtype} to separate them (margin 0.0032, {dtype} needs {needed})"
        )


def admit_widths(case):
    """The case for code that says nothing of square projections: no refusal is permitted."""
    return replace(case, only_with={name: one for name, one in case.only_with.items() if name != "projection_widths"})


def test_the_least_margin_is_not_enough(bench_of, spec: Spec):
    case = admit_widths(spec.cases["greedy-ends-at-step-2"])
    at = replace(case, golden=replace(case.golden, margin=least_margin("float32")))
    assert check_case(at, bench_of(greedy_decode=never)).reason == "dtype"
    above = replace(case, golden=replace(case.golden, margin=math.nextafter(least_margin("float32"), 1)))
    assert check_case(above, bench_of(greedy_decode=never)).reason == "raised"


OPTIONS = {
    "set_aside": ({"beam_finish": "set_aside"}, {"finish": "set_aside"}),
    "mean": ({"length_penalty": "mean"}, {"length_penalty": "mean"}),
    "gnmt": ({"length_penalty": "gnmt"}, {"length_penalty": "gnmt"}),
    "gnmt, set_aside": (
        {"length_penalty": "gnmt", "beam_finish": "set_aside"}, {"length_penalty": "gnmt", "finish": "set_aside"},
    ),
    "pre": ({"norm_placement": "pre"}, {"norm_first": True}),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize(("declared", "options"), OPTIONS.values(), ids=OPTIONS)
def test_the_reference_agrees_under_the_other_options_too(bench_of, spec: Spec, declared, options):
    def beam_search(**call):
        return reference_functions.beam_search(**call, **options)

    def greedy_decode(**call):
        return reference_functions.greedy_decode(**call, norm_first="norm_first" in options)

    bench = bench_of(conventions=declared, beam_search=beam_search, greedy_decode=greedy_decode)
    cases = [c for c in (*spec.cases_of(GREEDY), *spec.cases_of(BEAM)) if not declared.keys().isdisjoint(c.conventions)]
    verdicts = [check_case(case, bench) for case in cases]
    assert [v.message for v in verdicts if v.bad] == []
    assert sum(v.status is Status.PASSED for v in verdicts) >= 1


def test_scaled_embeddings_decode_as_a_larger_table_does(bench_of, spec: Spec):
    def with_table(decode):
        def scaled(*, params, **call):
            return decode(params={**params, "table": params["table"] * params["table"].shape[1] ** 0.5}, **call)

        return scaled

    functions = {name: with_table(getattr(reference_functions, name)) for name in (GREEDY, BEAM)}
    bench = bench_of(conventions={"embedding_scale": "sqrt_d_model"}, **functions)
    for id_ in ("greedy-embedding-scale", "beam-embedding-scale"):
        assert check_case(spec.cases[id_], bench).status is Status.PASSED


def test_a_failure_that_another_finish_explains_says_so(bench_of, spec: Spec):
    def beam_search(**call):
        return reference_functions.beam_search(**call, finish="set_aside")

    judgement = judge_case(spec.cases["beam-finish"], bench_of(beam_search=beam_search))
    verdict, found = Diagnosis(spec).explain(judgement)
    assert verdict.reason == "wrong-value"
    assert found.advice.startswith("this is beam_finish: set_aside (")


# ── advice ──


def highest_of_equals(**call):
    """Greedy decoding that takes the last of the best words."""
    params = dict(call["params"])
    order = torch.arange(params["w_vocab"].shape[1] - 1, -1, -1)
    ids = reference_functions.greedy_decode(**call).ids
    best = params["b_vocab"].max()
    last = int(order[(params["b_vocab"][order] == best).int().argmax()])
    return torch.where(params["b_vocab"][ids] == best, last, ids)


@pytest.mark.parametrize(
    ("strict", "status", "reason"), [(False, Status.SKIPPED, "advice"), (True, Status.FAILED, "wrong-value")]
)
def test_another_choice_among_equals_is_advice_unless_strict(bench_of, spec: Spec, strict, status, reason):
    verdict = check_case(spec.cases["greedy-equals-ids"], bench_of(strict=strict, greedy_decode=highest_of_equals))
    assert (verdict.status, verdict.reason) == (status, reason)
    assert verdict.message == "ids: 6 of 6 values are wrong; they must be exact"
    assert (verdict.ratio, bool(verdict.differences)) == ((math.inf, True) if strict else (None, False))


def test_the_other_choice_has_the_scores_that_must_be(bench_of, spec: Spec):
    def greedy_decode(**call):
        return {"ids": highest_of_equals(**call), "scores": reference_functions.greedy_decode(**call).scores}

    verdict = check_case(spec.cases["greedy-equals-scores"], bench_of(greedy_decode=greedy_decode))
    assert verdict.status is Status.PASSED


def test_what_every_call_must_keep_is_no_advice(bench_of, spec: Spec):
    def greedy_decode(**call):
        return reference_functions.greedy_decode(**call).ids.to(torch.int32)[:, :1]

    verdict = check_case(spec.cases["greedy-equals-ids"], bench_of(greedy_decode=greedy_decode))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-shape")
    verdict = check_case(admit_widths(spec.cases["greedy-equals-ids"]), bench_of(greedy_decode=never))
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")


def test_one_must_among_the_clauses_makes_it_a_failure(bench_of, spec: Spec):
    case = spec.cases["greedy-equals-ids"]
    assert spec.is_advice(case)
    binding = replace(case, clauses=("DEC-6", "DEC-2"))
    assert not spec.is_advice(binding)
    assert check_case(binding, bench_of(greedy_decode=highest_of_equals)).status is Status.FAILED


# ── properties on inputs that were drawn ──


def test_a_call_that_rounding_decides_is_not_checkable(bench_of, spec: Spec):
    subject = Subject(bench_of(), GREEDY)
    tie, case = spec.cases["greedy-equals-ids"], spec.cases["greedy-ends-at-step-2"]
    with pytest.raises(
        NotCheckable, match=r"^rounding to float32 decides what greedy_decode gives for the inputs drawn$"
    ):
        subject.decisive_tolerance(read_arguments(tie), "scores")
    bound = subject.decisive_tolerance(read_arguments(case), "scores")
    expected = case.golden.options[""]["scores"].error_scale * SLACK * UNIT_ROUNDOFF["float32"]
    assert bound == pytest.approx(expected, rel=0.3)
