"""The isolation: the place of a mistake that nothing known explains, by calls that leave only one part acting."""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from tests.support import wild
from tests.support.runs import change, make_run

from goldformer.adapters.find import find_adapter
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.cli import main
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import AGAIN, CLOSEST, FIX_TOO, NOTHING_KNOWN, PLACE
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.isolation import calls, find_options, isolate
from goldformer.conformance.diagnosis.isolation.calls import MOST_CALLS, Calls, GradientCalls
from goldformer.conformance.diagnosis.isolation.sentences import BEHIND_THE_END, CUT_SHORT, describe_part
from goldformer.conformance.diagnosis.isolation.switches import (
    Part,
    Switch,
    list_general,
    list_layer_switches,
    list_of_skeleton,
    list_parts,
    list_single_steps,
    make_uneven,
)
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.judging.applicability import select_plain_cases
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.invoke import Arguments, read_arguments
from goldformer.conformance.reports.text import format_remarks
from goldformer.spec import load_own_cases, load_spec
from goldformer.spec.formulas.attention import score_divisor
from goldformer.spec.formulas.decoding import next_beam, pad_words, score_words
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import around, instead
from goldformer.spec.formulas.transformer import embed
from goldformer.spec.oracle.run import derive_golden
from slips import make_bench, read_slips

ISOLATED = (
    "multi_head_attention",
    "encoder_layer",
    "decoder_layer",
    "encoder",
    "decoder",
    "transformer",
    "beam_search",
)
#: One slip in six: `python -m tests.support.slips` runs all.
SOME = read_slips()[::6]


def judge_small(component, bench, most=24):
    """Judge the smallest cases of a component."""
    cases = (c for c in select_plain_cases(component, bench) if c.cotangent is None)
    return [judge_case(case, bench) for case in sorted(cases, key=lambda case: case.size)[:most]]


def isolate_small(component, bench):
    """Return what the isolation finds from the smallest cases of a component, or None."""
    found = isolate(dict(enumerate(judge_small(component, bench))), bench.spec)
    return next((mistake for mistake, _ in found.values()), None)


@pytest.mark.sample(6)
@pytest.mark.parametrize("slip", SOME, ids=lambda slip: slip.id)
def test_the_place_of_a_slip_is_found_in_few_calls(slip, spec, tmp_path):
    found = isolate_small(slip.component, make_bench(slip, tmp_path, spec))
    assert found is not None
    assert slip.is_placed(found.places, found.names), found
    assert found.calls <= MOST_CALLS
    assert found.element
    assert found.wrong_call


def test_sentences_without_their_last_words_place_the_mistake_in_the_loop(spec):
    def cut(original, sentence, task):
        return original(replace(sentence, words=sentence.words[:-2]), task)

    book = build_textbook({pad_words: around(cut)}, only="greedy_decode")

    def greedy_decode(source, **others):
        return book.greedy_decode(source, **others)["ids"]

    code = SimpleNamespace(ARRAYS="numpy", greedy_decode=greedy_decode)
    found = isolate_small("greedy_decode", Bench(spec, Adapter.from_object(code, "mine.py", spec), "float32", "cpu"))
    assert (found.places, found.names) == (("loop",), (CUT_SHORT,))


def swap_second(original, beam, extensions, task):
    """Return a beam whose second sentence is extended by a word that the first one deserves."""
    kept = original(beam, extensions, task)
    return [kept[0], *(replace(other, words=(*kept[0].words[:-1], *other.words[-1:])) for other in kept[1:])]


def repeat_best(original, beam, extensions, task):
    """Return a beam of copies of the best sentence."""
    return original(beam, extensions, replace(task, beam_size=1)) * task.beam_size


def fill_with_end(sentence, task):
    """Return the words, followed by eos_id up to max_length."""
    return [*sentence.words, *[task.eos_id] * (task.max_length - len(sentence.words))]


FIRST_WORD, ONE_BEAM = "the first word (max_length = 1)", "one beam (beam_size = 1)"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("steps", "place", "right"),
    [
        (
            {next_beam: around(swap_second)},
            "the loop of decoding: what it carries of several beams from one word to the next", (FIRST_WORD, ONE_BEAM),
        ),
        (
            {next_beam: around(repeat_best)},
            "the loop of decoding: how it ranks or keeps several beams", (ONE_BEAM,),
        ),
        (
            {pad_words: instead(fill_with_end)},
            BEHIND_THE_END, (),
        ),
        (
            {score_words: around(lambda own, logits: [1.25 * score for score in own(logits)])},
            "the loop of decoding: how it scores or chooses a word", (),
        ),
    ],
)  # fmt: skip
def test_the_place_of_a_mistake_in_a_beam_search_is_found(spec, steps, place, right):
    bench = Bench(spec, Adapter.from_object(build_textbook(steps), "mine.py", spec), "float32", "cpu")
    found = isolate_small("beam_search", bench)
    assert (found.places, found.names) == (("loop",), (place,))
    assert found.holds == (() if place is BEHIND_THE_END else ("the model's forward pass on the same words", *right))


def judge_gradients(component, bench):
    """Judge the cases of a component's gradients."""
    cases = [case for case in bench.spec.cases_of(component) if case.cotangent is not None and case.error is None]
    return dict(enumerate(judge_case(case, bench) for case in cases))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("id_", "component", "place", "right"),
    [
        (
            "feed_forward.backward.relu-of-gradient", "encoder_layer", "the feed-forward network",
            ("the residuals and normalisations", "the self-attention"),
        ),
        (
            "layer_norm.backward.gamma-outside", "decoder_layer", "the residuals and normalisations, after norm_2", (),
        ),
        (
            "multi_head_attention.backward.weights-averaged", "multi_head_attention",
            "the weights or the rows of the keys and values of the attention", (),
        ),
    ],
)  # fmt: skip
def test_the_place_of_a_mistake_in_a_backward_pass_is_found(spec, id_, component, place, right):
    code = build_textbook(find_made(id_).steps, only=component)
    bench = Bench(spec, Adapter.from_object(code, "mine.py", spec), "float32", "cpu")
    ((found, example),) = isolate(judge_gradients(component, bench), spec).values()
    assert found.names == (f"the backward pass of {place}",)
    assert found.holds == right
    assert found.element.startswith("gradient of ")
    assert "cotangent: " in example


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("component", ["multi_head_attention", "encoder_layer", "decoder_layer"])
def test_no_gradient_of_correct_code_is_accused(component, dtype, spec):
    bench = Bench(spec, find_adapter("reference", spec), dtype, "cpu")
    cases = (c for c in spec.cases_of(component) if c.cotangent is not None and c.error is None)
    case = min(cases, key=lambda case: case.size).under(bench.adapter.options(component, spec))
    base, contract, asked = read_arguments(case), spec.contracts[component], GradientCalls(bench, component)
    parts = list_parts(base)
    compared = 0
    for silent in ((), parts, *([p for p in parts if p is not acting] for acting in parts)):
        for switch in (None, *list_general(contract, base)):
            arguments = switch.change(base) if switch else base
            for part in silent:
                arguments = part.silence.change(arguments)
            found = asked.find_differences(arguments)
            assert not found, (switch and switch.id, [p.id for p in silent])
            compared += found == ()
    assert compared >= 4


def test_the_place_is_told_beside_a_mistake_that_a_case_refutes(spec):
    """Scores that are divided for one sample only are not those of code that never divides them."""

    def divide(original, sizes):
        return 1.0 if sizes["..."][0] > 1 else original(sizes)

    book = build_textbook({score_divisor: around(divide)}, only="encoder_layer")
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    cases = [c for c in select_plain_cases("encoder_layer", bench) if c.cotangent is None]
    said = list(diagnose(Diagnosis(spec).explain_all([judge_case(case, bench) for case in cases]), spec))
    labels = [finding.label for finding in said]
    assert CLOSEST in labels
    place = next(f.text for f in said[labels.index(CLOSEST) :] if f.label == PLACE)
    assert place == "the queries, keys or scores of the self-attention"


def test_no_options_are_read_from_words(spec, tmp_path):
    """The worst sentences of one model are the best ones of a model with another scale and other positions."""
    bench = wild.make_bench("beam_hypotheses", "worst-first", tmp_path, spec)
    declared = bench.adapter.declare({"beam_finish": "set_aside", "length_penalty": "mean"}, spec)
    bench = replace(bench, adapter=declared)
    judged = [judge_case(case, bench) for case in select_plain_cases("beam_search", bench)]
    assert any(judgement.verdict.bad for judgement in judged)
    assert find_options(dict(enumerate(judged)), spec) == {}


def test_what_is_silenced_is_in_the_layers_that_are_left(spec):
    book = build_textbook({embed: around(lambda own, *given: 1.5 * own(*given))}, only="transformer")
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    found, _ = isolate({0: judge_case(spec.cases["tf-ordinary-two-and-two-layers"], bench)}, spec)[0]
    assert "num_decoder_layers = 1" in found.wrong_call
    assert "decoder.1." not in found.wrong_call


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("adapter", ["reference", "torch-nn-pre"])
@pytest.mark.parametrize("component", ISOLATED)
def test_no_call_accuses_correct_code(component, adapter, dtype, spec):
    bench = Bench(spec, find_adapter(adapter, spec), dtype, "cpu")
    if not bench.has(component):
        pytest.skip("it has no such component")
    case = min(select_plain_cases(component, bench), key=lambda case: (case.random, case.size))
    base, contract = read_arguments(case), spec.contracts[component]
    parts, post = list_parts(base), adapter != "torch-nn-pre"
    switches = [
        *list_single_steps(base), *list_layer_switches(contract, base), make_uneven(base),
        *list_general(contract, base), *list_of_skeleton(base, post=post),
        *(s for part in parts for s in (*part.details, *part.probes)),
    ]  # fmt: skip
    silences = [part.silence for part in parts]
    contexts = [(), silences, *([s for s in silences if s is not acting] for acting in silences)]
    compared = 0
    for context in contexts:
        for switch in (None, *switches):
            arguments = base
            for one in (*filter(None, [switch]), *context):
                arguments = one.change(arguments)
            found = Calls(bench, component).find_differences(arguments)
            assert not found, (switch and switch.id, [s.id for s in context], found)
            compared += found == ()
    assert compared >= 10


#: A NumPy layer whose hidden numbers are cut at 0.5.
CLIPPED = next(slip for slip in read_slips() if slip.id.startswith("7-"))


MESSAGE = """
Place: the activation of the feed-forward network
Right by itself: the residuals and normalisations and the self-attention
Smallest wrong call: enc-ordinary-plain with one sample, one head, one word, feed_forward.b_1 =
                     b_2 = 0, self_attention silent (last weights and biases 0): output[0, 0, 0]:
                     expected -0.0516646, actual 0.087546
Right call: the same with hidden numbers 32 times smaller, or with feed_forward.w_2 = b_2 = 0
"""


def test_the_place_is_that_under_the_options_that_the_code_follows(spec, tmp_path):
    """Undeclared, the placement and eps look like the mistake: only the cross-attention is wrong."""
    bench = wild.make_bench("timing_signal_conv", "memory-normalised", tmp_path, spec)
    judged = dict(enumerate(judge_small("decoder_layer", bench)))
    options = find_options(judged, spec)
    assert options == {"norm_placement": "pre", "layer_norm_eps": "1e-6"}
    ((mistake, _),) = isolate(judged, spec, options).values()
    assert (mistake.places, mistake.options) == (("cross_attention",), tuple(options.items()))
    assert "the feed-forward network" in mistake.holds
    ((declared, _),) = isolate(judged, spec).values()
    assert declared.places != mistake.places
    bad = next(judgement.verdict for judgement in judged.values() if judgement.verdict.bad)
    run = make_run([change(bad, matches=(), isolated=mistake)])
    told = [f.text for f in diagnose(run, spec) if f.label == "Convention"]
    assert len(told) == 1
    assert 'declare CONVENTIONS = {"norm_placement": "pre", "layer_norm_eps": "1e-6"} in the adapter' in told[0]
    again = Explained.from_json(json.loads(json.dumps(change(bad, isolated=mistake).as_json())))
    assert again.diagnosis.isolated == mistake


def explain(component, bench):
    return Diagnosis(bench.spec).explain_all(judge_small(component, bench))


@pytest.fixture(scope="module")
def clipped(spec, tmp_path_factory):
    """The verdicts on the clipped layer."""
    return explain("encoder_layer", make_bench(CLIPPED, tmp_path_factory.mktemp("clipped"), spec))


def test_the_message_says_place_rest_and_two_calls_in_few_lines(clipped, spec):
    first, _, *lines = format_remarks(diagnose(clipped, spec))
    assert first == "Fix first: encoder_layer"
    place = next(number for number, line in enumerate(lines) if line.startswith("  Place"))
    assert "\n".join(lines[place:]) == textwrap.indent(textwrap.dedent(MESSAGE).strip(), "  ")


@pytest.mark.parametrize("number", [5, 7, 24, 35, 41])
def test_the_smallest_wrong_call_is_a_case_to_check_alone(number, spec, tmp_path):
    slip = read_slips()[number]
    bench = make_bench(slip, tmp_path, spec)
    ((mistake, text),) = isolate(dict(enumerate(judge_small(slip.component, bench))), spec).values()
    assert text.startswith(f"# {mistake.wrong_call.split()[0]} with ")
    path = tmp_path / "cases.yaml"
    path.write_text(text, encoding="utf-8")
    (case,) = load_own_cases(path, spec)
    (verdict,) = (judge_case(derive_golden(one, spec), bench).verdict for one in [case])
    assert verdict.bad
    assert verdict.differences


def test_check_prints_the_smallest_wrong_call_as_a_case(spec, tmp_path):
    make_bench(CLIPPED, tmp_path, spec)
    path = str(tmp_path / "numpy_from_scratch.py")
    printed = CliRunner().invoke(main, ["check", path, "--component", "encoder_layer", "-v"]).stdout
    assert "  - id: isolated-enc-ordinary-plain\n" in printed
    assert "  Place: the activation of the feed-forward network\n" in printed


def test_another_process_is_isolated_by_the_same_calls(spec, tmp_path):
    here = make_bench(CLIPPED, tmp_path, spec)
    command = f"cmd: {sys.executable} -m goldformer serve {tmp_path / 'numpy_from_scratch.py'}"
    with closing(find_adapter(command, spec)) as adapter:
        there = isolate_small("encoder_layer", replace(here, adapter=adapter))
    assert there == isolate_small("encoder_layer", here)


class OtherGains:
    """The library's pre-norm layer, with other gains than those of the call."""

    ARRAYS = "torch"
    CONVENTIONS: ClassVar = {"norm_placement": "pre", "empty_row": "nan"}

    @staticmethod
    def encoder_layer(x, mask=None, *, num_heads, params):
        library = find_adapter("torch-nn-pre", load_spec()).functions["encoder_layer"]
        other = {name: value * value + 0.3 if name.endswith("gamma") else value for name, value in params.items()}
        return library(x=x, mask=mask, num_heads=num_heads, params=other)


def test_a_norm_that_only_a_silent_part_reads_is_not_called_right(spec):
    bench = Bench(spec, Adapter.from_object(OtherGains, "mine.py", spec), "float32", "cpu")
    found = isolate_small("encoder_layer", bench)
    assert found.holds == ("the residuals",)
    assert set(found.places) == {"self_attention", "feed_forward"}


def test_nothing_is_isolated_where_something_is_named(spec):
    book = build_textbook(OPTIONS["norm_placement", "pre"], only="encoder_layer")
    verdicts = explain("encoder_layer", Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu"))
    assert NOTHING_KNOWN not in [finding.label for finding in diagnose(verdicts, spec)]
    assert any(v.bad for v in verdicts)
    assert not any(verdicts.about(v).isolated for v in verdicts)


@pytest.mark.parametrize("most", range(1, MOST_CALLS + 1, 3))
def test_what_was_found_before_the_calls_are_exhausted_is_kept(most, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "MOST_CALLS", most)
    found = isolate_small("encoder_layer", make_bench(CLIPPED, tmp_path, spec))
    # The case, the layer with all parts silent, once more with uneven inputs, and the two parts.
    if most < 5:
        assert found is None
    else:
        assert found.places == ("feed_forward",)
        assert found.calls <= most


class Counted:
    """A layer that is right, and counts its calls; the first ones give something else."""

    ARRAYS = "numpy"

    def __init__(self, wrong_calls=0, end=None):
        self.calls, self.wrong_calls, self.end = 0, wrong_calls, end
        self.layer = build_textbook(only="encoder_layer").encoder_layer

    def encoder_layer(self, x, mask=None, *, num_heads, params):
        self.calls += 1
        output = self.layer(x, mask, num_heads=num_heads, params=params)["output"]
        return np.sin(9 * output) if self.calls <= self.wrong_calls else output


def test_a_failure_that_does_not_repeat_has_no_place(spec):
    layer = Counted(wrong_calls=24)
    bench = Bench(spec, Adapter.from_object(layer, "mine.py", spec), "float32", "cpu")
    assert isolate_small("encoder_layer", bench) is None
    assert layer.calls == 25


def test_what_an_implementation_declines_is_not_called_right(spec, tmp_path):
    bench = make_bench(CLIPPED, tmp_path, spec)
    layer = bench.adapter.functions["encoder_layer"]

    def decline_silence(x, mask=None, *, num_heads, params):
        if not params["self_attention.w_o"].any():
            raise NotImplementedError("a layer without attention")
        return layer(x, mask, num_heads=num_heads, params=params)

    functions = {**bench.adapter.functions, "encoder_layer": decline_silence}
    found = isolate_small("encoder_layer", replace(bench, adapter=replace(bench.adapter, functions=functions)))
    assert found.places == ("feed_forward",)
    assert found.holds == ("the self-attention",)


def test_a_correct_layer_is_not_called_again(spec):
    layer = Counted()
    bench = Bench(spec, Adapter.from_object(layer, "mine.py", spec), "float32", "cpu")
    verdicts = explain("encoder_layer", bench)
    assert not any(v.bad for v in verdicts)
    judged = Counted()
    bench = Bench(spec, Adapter.from_object(judged, "mine.py", spec), "float32", "cpu")
    for verdict in verdicts:
        judge_case(spec.cases[verdict.check], bench)
    # A case that passes is called again in the ways that its id selects.
    assert layer.calls == judged.calls >= len(verdicts.verdicts)


def test_the_place_survives_the_way_from_another_process(clipped):
    shown = next(explained for explained in map(clipped.explain, clipped) if explained.diagnosis.isolated)
    again = Explained.from_json(json.loads(json.dumps(shown.as_json())))
    assert again.diagnosis == replace(shown.diagnosis, example="")
    assert again.example == shown.example
    without = {name: value for name, value in shown.as_json().items() if name != "isolated"}
    assert Explained.from_json(without).diagnosis.isolated is None


def test_a_call_that_leaves_a_query_no_key_says_nothing(spec):
    bench = Bench(spec, find_adapter("textbook", spec), "float32", "cpu")
    case = next(c for c in select_plain_cases("encoder_layer", bench) if "mask" in c.inputs)
    arguments = read_arguments(case)
    hidden = np.zeros_like(arguments.inputs["mask"])
    empty = Arguments({**arguments.inputs, "mask": hidden}, arguments.params, arguments.attributes)
    made = Calls(bench, "encoder_layer")
    assert made.find_differences(empty) is None
    assert made.count == 0


def test_what_is_mixed_among_tokens_is_not_placed_in_the_weights_only():
    """With one key, or with one head, nothing is mixed."""
    silence = Switch("attention", "nothing", lambda arguments: arguments)
    attention = Part("attention", "the attention", "attention", silence, (), (), key_axes=("kv_seq",))
    single = describe_part(attention, {"attention:weights"}, ["words:kv_seq"], [], [])
    assert single == "the weights or the rows of the keys and values of the attention"
    mixed = describe_part(attention, {"attention:weights"}, ["words:kv_seq", "heads"], [], [])
    assert mixed == "the weights, the cut or merge of the heads or the rows of the keys and values of the attention"


@pytest.mark.sample(0)
@pytest.mark.parametrize(("id_", "label"), [("layer_norm.beta-first", AGAIN), ("greedy_decode.sees.itself", FIX_TOO)])
def test_decoding_with_a_wrong_model_is_checked_again_unless_its_loop_is_wrong(id_, label, spec):
    """A cache reads what is wrong in a model word by word, which no textbook does."""
    judgements = []
    for component, made in (("transformer", "cross-raw-src"), ("greedy_decode", id_)):
        book = build_textbook(find_made(made).steps, only=component)
        bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
        cases = [case for case in select_plain_cases(component, bench) if case.size < 3000]
        judgements += [judge_case(case, bench) for case in cases[:6]]
    verdicts = Diagnosis(spec, {id_}).explain_all(judgements)
    assert [f.label for f in diagnose(verdicts, spec) if f.text == "greedy_decode"] == [label]
