"""Every property catches what it is there for, shows a small input, and accuses nobody else."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter, find_adapter
from goldformer.adapters.mistakes import implementations
from goldformer.adapters.textbook import Textbook
from goldformer.conformance.engine import Bench
from goldformer.conformance.properties import HELD, check_property, components_of
from goldformer.conformance.run import load_properties
from goldformer.conformance.text import explain_verdict
from goldformer.conformance.verdict import Status, Verdict

load_properties()

ATTENTION = "scaled_dot_product_attention"


# Each is wrong in one way, and keeps every shape.


class NotNormalised(Textbook):
    def softmax(self, scores):
        return np.exp(scores - scores.max(-1, keepdims=True)) / 2


class NoMaximumAndAnEpsilon(Textbook):
    def softmax(self, scores):
        powers = np.exp(scores)
        return powers / (powers.sum(-1, keepdims=True) + 1e-3)


class KeepsTheFirstKeyApart(Textbook):
    def weights(self, scaled, mask):
        scaled = scaled + 0
        scaled[..., 0] += 1
        return super().weights(scaled, mask)


class ShiftedValues(Textbook):
    def weighted_sum(self, weights, value):
        return super().weighted_sum(weights, value) + 1


class SeesOneAhead(Textbook):
    """Blends the last row in, whatever the mask."""

    def weighted_sum(self, weights, value):
        return super().weighted_sum(weights, value) + value[..., -1:, :] / 64


class EncodingBySample(Textbook):
    def positional_encoding(self, x):
        sample = np.arange(len(x), dtype=x.dtype)[:, None, None]
        return super().positional_encoding(x) + sample / 64


class NoEncoding(Textbook):
    def encoding_for(self, x):
        return np.zeros_like(x)


class LeanTowardsEarlyQueries(Textbook):
    """The scores of each query get its position added; softmax undoes that, the output does not."""

    # Without dropout, which the textbook has.
    def scaled_dot_product_attention(self, query, key, value, mask=None):  # type: ignore[override]
        attended = super().scaled_dot_product_attention(query, key, value, mask)
        position = np.arange(query.shape[-2], dtype=query.dtype)[:, None]
        return attended | {"output": attended["output"] + position / 64}


class FeedsTheMean(Textbook):
    def feed_forward(self, x, *, params):
        return super().feed_forward(x + x.mean(axis=1, keepdims=True), params=params)


class NormOverTheBatch(Textbook):
    norm_axis = (0, 1)


class IgnoresTheMemory(Textbook):
    def decoder_layer(self, x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
        return super().decoder_layer(x, 0 * memory, self_mask, memory_mask, num_heads=num_heads, params=params)


class PaddingReplacesCausal(Textbook):
    def target_mask(self, target, pad_id):
        return self.padding_mask(target, pad_id=pad_id)


class ForgetsSourcePadding(Textbook):
    def source_mask(self, source, pad_id):
        return None


class SharesNothing(Textbook):
    def shared(self, target, smoothing):
        return 0 * target


class CountsPadding(Textbook):
    def number_counted(self, counted):
        return counted.size


class Reversed(Textbook):
    def kl_terms(self, target, log_q):
        return -super().kl_terms(target, log_q)


class OneSeedForAll(Textbook):
    def xavier_uniform(self, like, *, seed):
        return super().xavier_uniform(like, seed=7)


class DoublesWhatIsKept(Textbook):
    def scaled_up(self, x, rate):
        return 2 * x


class ForgetsTheSeed(Textbook):
    def dropped(self, x, name, rate, seed):
        return super().dropped(x, name, rate, None)


class OneMaskForAllSamples(Textbook):
    def stays(self, shape, rate, random):
        return np.broadcast_to(super().stays(shape[1:], rate, random), shape)


class ScaledInEvaluation(Textbook):
    def untouched(self, x, rate):
        return x * (1 - rate)


class DropsChannelsOfTheOutput(Textbook):
    def kept_weights(self, scaled, weights, rate, seed):
        return weights

    def scaled_dot_product_attention(self, query, key, value, mask=None, *, dropout_rate=None, seed=None):
        attended = super().scaled_dot_product_attention(query, key, value, mask)
        rate = dropout_rate or 0
        return attended | {"output": self.dropped(attended["output"], "dropout_rate", rate, seed)}


class ReadsTheLastWordAlone(Textbook):
    def read(self, sentence, task):
        return super().read(sentence, task)[-1:]


class GoesOnAfterTheEnd(Textbook):
    def ended(self, sentence, task):
        return False


class BeginsWithCopies(Textbook):
    def first_beam(self, task):
        return super().first_beam(task) * task.beam_size


class ComparesTheLastWord(Textbook):
    def total(self, sentence):
        return sentence.word_scores[-1]


class KeepsTheWorst(Textbook):
    def next_beam(self, beam, grown, task):
        return self.ranked([s for own in grown for s in own], task)[-task.beam_size :]


class Climbs(Textbook):
    def moved(self, weight, gradient, learning_rate):
        return weight + learning_rate * gradient


class NeverClearsGradients(Textbook):
    def cleared(self, gradients, earlier):
        return {name: gradient + earlier.get(name, 0) for name, gradient in gradients.items()}


ForgetsTheMask = implementations()["mask-not-inplace"].make
SoftmaxOverTheBatch = implementations()["softmax-batch-axis"].make
CosineExponent = implementations()["pe-cos-exp"].make
ActivatesTheProjections = implementations()["qkv-relu"].make
SharesTheFirstHead = implementations()["head-shared-w"].make
InterleavesHeads = implementations()["head-interleaved"].make

#: The first is tried below, the others in tests/test_engine_repeated_calls.py.
FOR_EVERY_COMPONENT = {"device-hygiene", "repeat-calls", "no-memory", "memory-layout"}
PERMUTED = r"with the tokens in the order \[1, 0\], the rows of the output do not come in that order"
#: By property: who breaks it, and what is said of that.
CAUGHT = {
    "sm-simplex": (NotNormalised, "the weights of a row do not sum to 1"),
    "sm-shift": (NoMaximumAndAnEpsilon, "softmax\\(x \\+ -?\\d+\\) differs from softmax\\(x\\)"),
    "sdpa-simplex": (ShiftedValues, "an output lies outside the values it averages"),
    "sdpa-key-order": (
        KeepsTheFirstKeyApart,
        "the output changes when the rows of key and value come in the order \\[.*\\]",
    ),
    "sdpa-key-shift": (
        implementations()["mask-multiply-zero"].make,
        r"adding \[.*\] to every key changes the output",
    ),
    "sdpa-hidden-gradient": (
        ForgetsTheMask,
        "the gradient of the output up to position 0 by later rows of (key|value) is not 0",
    ),
    "sdpa-causality": (
        ForgetsTheMask,
        r"the output up to position 0 changes when later rows of key and value are replaced",
    ),
    "sdpa-padding": (
        ForgetsTheMask,
        r"the output changes when what the mask hides is replaced: the samples keep \[1, 2\] tokens",
    ),
    "sdpa-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than alone"),
    "pe-batch": (EncodingBySample, "two samples that are equal get different encodings"),
    "pe-shift-is-rotation": (
        CosineExponent,
        "row pos \\+ (\\d) is not row pos with each pair of sine and cosine turned by the angle of row \\1",
    ),
    "pe-breaks-symmetry": (NoEncoding, "with the encoding added, permuting the tokens still only permutes the output"),
    "mha-permutation": (LeanTowardsEarlyQueries, PERMUTED),
    "mha-causality": (
        SeesOneAhead,
        r"the output up to position 0 changes when later rows of query, key and value are replaced",
    ),
    "mha-hidden-tokens": (
        ForgetsTheMask,
        r"the output changes when what the mask hides is replaced: the samples keep \[1, 2\] tokens",
    ),
    "mha-rotation": (
        ActivatesTheProjections,
        "the output changes when queries and keys of each head are rotated together",
    ),
    "mha-linear": (
        ActivatesTheProjections,
        "halfway between two values the output is not halfway between theirs: it is not linear in the values",
    ),
    "mha-head-order": (
        SharesTheFirstHead,
        r"the output changes when the heads, with their rows of w_o, come in the order \[\d, \d, \d\]",
    ),
    "mha-heads": (InterleavesHeads, "head [01] matters although its rows of w_o are 0"),
    "mha-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than alone"),
    "fmha-permutation": (
        LeanTowardsEarlyQueries,
        PERMUTED,
    ),
    "fmha-causality": (SeesOneAhead, r"the output up to position 0 changes when later rows of x are replaced"),
    "fmha-head-order": (
        implementations()["qkv-layout"].make,
        r"the output changes when the heads, with their rows of w_o, come in the order \[\d, \d, \d\]",
    ),
    "fmha-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than alone"),
    "ffn-positions": (FeedsTheMean, r"the output up to position 0 changes when later rows of x are replaced"),
    "ln-rows": (NormOverTheBatch, "a row gives something else when other rows stand beside it"),
    "enc-permutation": (LeanTowardsEarlyQueries, PERMUTED),
    "dec-causality": (SeesOneAhead, r"the output up to position 0 changes when later rows of x are replaced"),
    "dec-memory": (IgnoresTheMemory, "another memory gives the same output: the layer ignores it"),
    "model-causality": (
        PaddingReplacesCausal,
        "the logits up to position 0 change when later words of the target are replaced",
    ),
    "encoder-batch": (
        ForgetsTheMask,
        "the output of a sample changes when 1 padding follows it and a longer sample stands beside it",
    ),
    "model-prefix": (
        implementations()["scale-seq-len"].make,
        "the logits up to position 0 change when the target ends there",
    ),
    "model-padding": (
        ForgetsSourcePadding,
        "the logits of a sample change when \\d padding follows it and a longer sample stands beside it",
    ),
    "out-simplex": (NotNormalised, "the words' probabilities do not sum to 1"),
    "ls-sums-to-one": (SharesNothing, "a smoothed row does not sum to 1"),
    "ce-padding": (CountsPadding, "\\d positions of padding change the loss"),
    "kl-sign": (Reversed, "the divergence is negative"),
    "xavier-seed": (OneSeedForAll, "seeds 0 and 1 give the same weight"),
    "dropout-values": (DoublesWhatIsKept, "an element is neither 0 nor x/\\(1 − rate\\)"),
    "dropout-seed": (ForgetsTheSeed, "the same seed drops other elements the second time"),
    "dropout-independence": (
        OneMaskForAllSamples,
        "elements are not dropped one by one: at one place (0|100)% of 70 samples lose theirs at a rate of 0.5",
    ),
    "dropout-after-evaluation": (
        implementations()["dropout-sticky"].make,
        "after a call in evaluation mode nothing is dropped in training",
    ),
    "dropout-evaluation": (ScaledInEvaluation, "the output is not the input, although it is not training"),
    "sdpa-dropout": (DropsChannelsOfTheOutput, "a weight is dropped for one channel of the value and kept for another"),
    "greedy-teacher-forcing": (
        ReadsTheLastWordAlone,
        r"the model that reads \[\d, \d\] at once finds another word more probable than one of these",
    ),
    "greedy-after-the-end": (
        GoesOnAfterTheEnd,
        r"\[.*(\d), \d\] goes on after \1, its eos_id, where 0, pad_id, must stand",
    ),
    "greedy-batch": (
        implementations()["batch-eos"].make,
        "the (sentence|score) of a sample changes when 1 padding follows its source and a longer one stands beside it",
    ),
    "beam-sentences": (BeginsWithCopies, r"the same sentence is returned twice: \[\[(.*)\], \[\1\]\]"),
    "beam-teacher-forcing": (
        ComparesTheLastWord,
        r"the model that reads \[.*\] at once finds a later one more probable than an earlier one"
        r"|the scores of \[.*\] are not those of the model that reads them at once",
    ),
    "beam-of-one": (KeepsTheWorst, "a beam of one gives another sentence than greedy decoding"),
    "beam-batch": (
        implementations()["beam-batch-index"].make,
        "the (sentences|scores) of a sample change when 1 padding follows its source and a longer one stands beside it",
    ),
    "sha-permutation": (LeanTowardsEarlyQueries, PERMUTED),
    "sha-hidden-gradient": (
        implementations()["causal-missing"].make,
        "the gradient of the output up to position 0 by later rows of x is not 0",
    ),
    "sha-causality": (SeesOneAhead, r"the output up to position 0 changes when later rows of x are replaced"),
    "shas-gradient": (
        Climbs,
        "w_[qkv] is not the weight less learning_rate times its gradient by single_head_attention",
    ),
    "shas-one-by-one": (NeverClearsGradients, "2 steps in one call give another \\w+ than 2 calls of one step"),
}


def functions_of(textbook, spec):
    """What an adapter of a textbook holds: its components, and their backward passes."""
    names = {name for component in spec.contracts for name in (component, f"{component}_gradient")}
    return {name: getattr(textbook, name) for name in names if hasattr(textbook, name)}


@pytest.fixture
def judge(spec):
    """The verdict of one property for one component of an adapter of some functions."""

    def check(property_, component, functions, *, arrays="torch", dtype="float32", strict=False):
        thing = SimpleNamespace(ARRAYS=arrays, NAME="mine", **functions)
        bench = Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu", strict)
        return check_property(spec.properties[property_], component, bench)

    return check


def test_every_property_has_someone_who_breaks_it(spec):
    assert set(spec.properties) == set(HELD) == {*CAUGHT, *FOR_EVERY_COMPONENT}


@pytest.mark.parametrize("property_", CAUGHT)
def test_a_property_catches_its_breaker_and_shows_a_small_input(property_, judge, spec):
    textbook, message = CAUGHT[property_]
    (component,) = components_of(spec.properties[property_], spec)
    verdict = judge(property_, component, functions_of(textbook(), spec), arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert re.fullmatch(message, verdict.message)
    assert re.match(r"smallest input: \w+=", verdict.detail)


@pytest.mark.parametrize(
    ("property_", "smallest"),
    [
        ("sdpa-batch", "smallest input: batch=2, q_seq=2, kv_seq=2, seed=0"),
        ("pe-shift-is-rotation", "smallest input: seq=4, d_model=2, shift=1"),
        ("sm-simplex", "smallest input: batch=1, n=1, seed=0, factor=1"),
    ],
)
def test_the_input_shown_is_the_smallest_that_fails(property_, smallest, judge, spec):
    textbook, _ = CAUGHT[property_]
    component = spec.properties[property_].component
    verdict = judge(property_, component, functions_of(textbook(), spec), arrays="numpy")
    assert verdict.detail == smallest
    assert f"  Input       {smallest}" in explain_verdict(verdict, spec)
    assert Verdict.from_json(verdict.as_json()) == verdict


def test_the_elements_that_violate_a_property_are_shown(judge):
    verdict = judge("sm-simplex", "softmax", {"softmax": NotNormalised().softmax}, arrays="numpy")
    (difference,) = verdict.differences
    assert (difference.output, difference.first.index, difference.first.expected) == ("output", (0,), 1.0)
    assert difference.first.got == 0.5
    assert verdict.ratio == difference.ratio > 1000


def test_what_goes_wrong_only_at_times_is_a_violation_too(judge):
    # Once it ended in Hypothesis's own exception, and the command line in a traceback.
    made = implementations()["nondeterminism"].make()
    verdict = judge("sdpa-padding", ATTENTION, {ATTENTION: made.scaled_dot_product_attention}, arrays="numpy")
    assert (verdict.status, verdict.reason, verdict.example) == (Status.FAILED, "property", "")
    assert verdict.message.endswith(", but not every time: the same call gives different results")
    assert verdict.differences


def test_a_crash_that_comes_only_at_times_is_an_error_of_the_property(judge):
    calls = []

    def softmax(scores):
        calls.append(scores)
        if len(calls) == 3:
            raise MemoryError("for once")
        return Textbook().softmax(scores)

    verdict = judge("sm-simplex", "softmax", {"softmax": softmax}, arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message.startswith("raised MemoryError: for once")


def test_equal_results_that_are_not_finite_keep_no_property(judge):
    def softmax(scores):
        return np.full_like(scores, np.nan)

    verdict = judge("sm-shift", "softmax", {"softmax": softmax}, arrays="numpy")
    assert (verdict.status, verdict.message) == (Status.FAILED, "output is not finite, for inputs that are")
    (difference,) = verdict.differences
    assert (difference.wrong, difference.compared) == (1, 1)


def test_a_component_that_raises_is_an_error_of_the_property(judge):
    verdict = judge("sm-simplex", "softmax", {"softmax": lambda scores: 1 / 0})
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message.startswith("raised ZeroDivisionError: division by zero")


def test_a_property_of_two_components_needs_both(judge):
    verdict = judge("pe-breaks-symmetry", "positional_encoding", {"positional_encoding": lambda x: x})
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-implemented")
    assert verdict.message == "mine has no scaled_dot_product_attention"


@pytest.mark.parametrize(("strict", "status"), [(False, Status.SKIPPED), (True, Status.FAILED)])
def test_what_is_not_implemented_fails_its_properties_only_if_strict(strict, status, judge):
    verdict = judge("sm-shift", "softmax", {}, strict=strict)
    assert (verdict.status, verdict.reason, verdict.message) == (status, "not-implemented", "mine has no softmax")


@pytest.mark.parametrize("strict", [False, True])
def test_a_property_of_which_rounding_decides_every_input_is_not_checkable(strict, judge, monkeypatch):
    monkeypatch.setattr("goldformer.conformance.properties.least_margin", lambda dtype: math.inf)
    functions = {name: getattr(Textbook(), name) for name in ("greedy_decode", "beam_search")}
    for property_, component in (("greedy-batch", "greedy_decode"), ("beam-of-one", "beam_search")):
        verdict = judge(property_, component, functions, arrays="numpy", strict=strict)
        assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
        assert verdict.message == "rounding to float32 decides what greedy_decode gives for the inputs drawn"


# Device hygiene


def attend(query, key, value, mask, scale):
    scores = query @ key.transpose(-1, -2) * scale
    scores = scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, -1) @ value


def scale_of_one_element_on_the_cpu(query, key, value, mask=None):
    return attend(query, key, value, mask, 1 / torch.sqrt(torch.FloatTensor([query.shape[-1]])))


def mask_on_the_cpu(query, key, value, mask=None):
    if mask is None:
        mask = torch.ones(query.shape[-2], key.shape[-2]).bool()
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


def mask_on_the_cpu_by_where(query, key, value, mask=None):
    everything = torch.ones(query.shape[-2], key.shape[-2]).bool()
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = torch.where(everything if mask is None else mask, scores, torch.full_like(scores, -torch.inf))
    return torch.softmax(scores, -1) @ value


def zeros_on_the_cpu(query, key, value, mask=None):
    output = attend(query, key, value, mask, query.shape[-1] ** -0.5)
    return output + torch.zeros(output.shape)


def result_made_anew_on_the_cpu(query, key, value, mask=None):
    output = attend(query, key, value, mask, query.shape[-1] ** -0.5)
    return torch.zeros(output.shape) if output.is_meta else output


def weights_made_anew_on_the_cpu(query, key, value, mask=None):
    output = attend(query, key, value, mask, query.shape[-1] ** -0.5)
    return {"weights": torch.full((*query.shape[:-1], key.shape[-2]), 1.0), "output": output}


MIXES = "mixes devices: a tensor is made on the CPU, whatever the inputs are on ("


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (scale_of_one_element_on_the_cpu, MIXES),
        (mask_on_the_cpu, MIXES),
        (mask_on_the_cpu_by_where, MIXES),
        (zeros_on_the_cpu, MIXES),
        (result_made_anew_on_the_cpu, "output is on cpu though the inputs are elsewhere"),
        (weights_made_anew_on_the_cpu, "weights is on cpu though the inputs are elsewhere"),
    ],
    ids=lambda value: getattr(value, "__name__", " "),
)
def test_a_tensor_left_on_the_cpu_is_caught_without_a_gpu(function, says, judge):
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: function})
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert verdict.message.startswith(says)


def test_the_line_that_mixes_devices_is_told(judge):
    message = judge("device-hygiene", ATTENTION, {ATTENTION: zeros_on_the_cpu}).message
    line = zeros_on_the_cpu.__code__.co_firstlineno + 2
    assert f"({__file__}:{line}, zeros_on_the_cpu)" in message


def zero_dimensional_scale(query, key, value, mask=None):
    """A 0-d CPU tensor meets any device, as a number does: torch allows it."""
    return attend(query, key, value, mask, 1 / torch.sqrt(torch.tensor(float(query.shape[-1]))))


@pytest.mark.parametrize(
    "function",
    [zero_dimensional_scale, find_adapter],
    ids=["0-d scale", "reference"],
)
def test_what_follows_its_inputs_is_clean(function, judge, spec):
    if function is find_adapter:
        function = find_adapter("reference", spec).functions[ATTENTION]
    assert judge("device-hygiene", ATTENTION, {ATTENTION: function}).status is Status.PASSED


def asks_for_a_number(query, key, value, mask=None):
    assert query.abs().max().item() < 1e30
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


def branches_on_its_data(query, key, value, mask=None):
    if (query > 1e30).any():
        raise OverflowError("query: too large")
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


def goes_through_numpy(query, key, value, mask=None):
    scale = float(np.sqrt(query.detach().numpy().shape[-1]))
    return attend(query, key, value, mask, 1 / scale)


def goes_through_the_cpu(query, key, value, mask=None):
    return attend(query.cpu(), key.cpu(), value.cpu(), mask, query.shape[-1] ** -0.5)


def raises_in_its_own_words(query, key, value, mask=None):
    if query.is_meta:
        raise ValueError("no values")
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        asks_for_a_number,
        branches_on_its_data,
        goes_through_numpy,
        goes_through_the_cpu,
        raises_in_its_own_words,
    ],
)
def test_code_that_looks_at_its_data_is_not_accused(function, strict, judge):
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: function}, strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message.startswith("cannot run on the meta device: ")


def test_a_path_with_cpu_and_meta_in_it_is_no_evidence(tmp_path, spec):
    path = tmp_path / "cpu" / "metaformer.py"
    path.parent.mkdir()
    path.write_text(
        'ARRAYS = "torch"\ndef softmax(scores):\n    if scores.is_meta:\n        raise ValueError("no values")\n'
        "    return scores.softmax(-1)\n",
        encoding="utf-8",
    )
    bench = Bench(spec, find_adapter(str(path), spec), "float32", "cpu")
    assert check_property(spec.properties["device-hygiene"], "softmax", bench).reason == "not-checkable"


@pytest.mark.parametrize("strict", [False, True])
def test_who_declares_the_cpu_alone_may_make_tensors_there(strict, judge):
    functions = {ATTENTION: zeros_on_the_cpu, "DEVICES": ("cpu",)}
    verdict = judge("device-hygiene", ATTENTION, functions, strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message == "it runs on the CPU alone, as DEVICES declares"


@pytest.mark.parametrize("strict", [False, True])
def test_numpy_has_no_devices_to_mix(strict, judge):
    verdict = judge("device-hygiene", "softmax", {"softmax": Textbook().softmax}, arrays="numpy", strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message == "numpy has no meta device"


# What is drawn at random


class WholeTokens(Textbook):
    def stays(self, shape, rate, random):
        return np.broadcast_to(super().stays((*shape[:-1], 1), rate, random), shape)


class WholeChannels(Textbook):
    def stays(self, shape, rate, random):
        return np.broadcast_to(super().stays((shape[0], 1, *shape[2:]), rate, random), shape)


class DropsNothing(Textbook):
    def dropped(self, x, name, rate, seed):
        return x


@pytest.mark.parametrize(
    ("textbook", "said"),
    [
        (WholeTokens, "of 72 channels lose theirs at a rate of 0.5"),
        (WholeChannels, "of 71 tokens lose theirs at a rate of 0.5"),
        (OneMaskForAllSamples, "of 70 samples lose theirs at a rate of 0.5"),
        (DropsNothing, "at one place 0% of 70 samples lose theirs at a rate of 0.5"),
    ],
)
def test_whatever_is_dropped_together_is_named(textbook, said, judge):
    functions = {"dropout": textbook().dropout}
    verdict = judge("dropout-independence", "dropout", functions, arrays="numpy")
    assert verdict.status is Status.FAILED
    assert verdict.message.startswith("elements are not dropped one by one: at one place ")
    assert verdict.message.endswith(said)


class SameSeedAlways(Textbook):
    def dropped(self, x, name, rate, seed):
        return super().dropped(x, name, rate, 7)


@pytest.mark.parametrize(
    ("property_", "textbook", "said"),
    [
        ("dropout-seed", SameSeedAlways, "seeds 0 and 1 drop the same elements"),
        ("sdpa-dropout", SameSeedAlways, "seeds 0 and 1 drop the same weights"),
        ("sdpa-dropout", ForgetsTheSeed, "the same seed drops other weights the second time"),
        ("sdpa-dropout", DoublesWhatIsKept, None),
        ("sdpa-dropout", DropsNothing, "seeds 0 and 1 drop the same weights"),
        ("dropout-values", DropsNothing, "an element is neither 0 nor x/(1 − rate)"),
    ],
)
def test_the_seed_and_the_scale_are_told_apart(property_, textbook, said, judge):
    component = ATTENTION if property_ == "sdpa-dropout" else "dropout"
    verdict = judge(property_, component, {component: getattr(textbook(), component)}, arrays="numpy")
    # At the rate of one half that this property draws, twice is right.
    assert verdict.message == (said or "")


def test_weights_that_are_made_to_sum_to_one_again_are_caught(judge):
    class Renormalised(Textbook):
        def kept_weights(self, scaled, weights, rate, seed):
            kept = super().kept_weights(scaled, weights, rate, seed)
            return kept / np.maximum(kept.sum(-1, keepdims=True), 1e-9)

    verdict = judge("sdpa-dropout", ATTENTION, {ATTENTION: Renormalised().scaled_dot_product_attention}, arrays="numpy")
    assert verdict.message == "a weight is neither 0 nor what it is without dropout, divided by 1 − rate"
