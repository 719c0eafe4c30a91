"""Every property catches what it is there for, shows a small input, and accuses nobody else."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from goldformer.adapters import Adapter, find_adapter, pretend_device
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import _REGISTRY, components_of, load_properties
from goldformer.conformance.reports.text import explain_verdict
from goldformer.spec.formulas.attention import (
    drop_weights,
    softmax,
)
from goldformer.spec.formulas.decoding import (
    has_ended,
)
from goldformer.spec.formulas.randomness import draw_dropout_mask, drop_elements, scale_up
from spoiled import spoil

ATTENTION = "scaled_dot_product_attention"


#: By property of one component, a mistake that it catches and what it says of it, as a regular expression.
CAUGHT = yaml.safe_load(Path(__file__).with_name("caught.yaml").read_text(encoding="utf-8"))
#: The first is tried below, the next in test_repeated_calls.py, those of memory in test_memory.py.
MEMORY = {"memory-around", "same-storage", "own-results", "new-memory"}
FOR_EVERY_COMPONENT = {"device-hygiene", "repeat-calls", "no-memory", "memory-layout", *MEMORY}


@spoil(instead_of=softmax)
def not_normalised(scores):
    return np.exp(scores - scores.max(-1, keepdims=True)) / 2


@spoil(instead_of=softmax)
def no_maximum_and_an_epsilon(scores):
    powers = np.exp(scores)
    return powers / (powers.sum(-1, keepdims=True) + 1e-3)


@spoil(instead_of=has_ended)
def asks_before_each_step(sentence, task):
    return (task.bos_id, *sentence.words)[-1] == task.eos_id


@spoil(around=drop_elements)
def forgets_the_seed(original, x, rate, seed):
    return original(x, rate, None)


@spoil(instead_of=scale_up)
def doubles_what_is_kept(x, rate):
    return 2 * x


@spoil(around=draw_dropout_mask)
def one_mask_for_all_samples(original, shape, rate, random):
    return np.broadcast_to(original(shape[1:], rate, random), shape)


def functions_of(textbook, spec):
    """The contents of an adapter of a textbook: its components, and their backward passes."""
    names = {name for component in spec.contracts for name in (component, f"{component}_gradient")}
    return {name: getattr(textbook, name) for name in names if hasattr(textbook, name)}


@pytest.fixture
def judge(spec):
    """The verdict of one property for one component of an adapter of some functions."""

    def check(property_, component, functions, *, arrays="torch", dtype="float32", strict=False):
        thing = SimpleNamespace(ARRAYS=arrays, NAME="mine", **functions)
        bench = Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu", Policy(strict=strict))
        return check_property(spec.properties[property_], component, bench)

    return check


def test_every_property_has_someone_who_breaks_it(spec):
    load_properties(spec)
    assert set(spec.properties) == set(_REGISTRY) == {*CAUGHT, *FOR_EVERY_COMPONENT, "sha-message"}


@pytest.mark.parametrize(
    ("missing", "misshapen", "named"),
    [
        ("Wq is null", "Wk must be 2x2", True),
        ("'w_q'", "w_k: shape (2, 3) is not (d_model, d_model)", True),
        ("a weight is missing", "Wk must be 2x2", False),
        ("row query is missing", "Wk must be 2x2", False),
        ("Wq is null", "Wk has a wrong shape", False),
        ("Wq is null", "the weight must be 2x2", False),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_the_message_about_a_weight_is_advised_to_name_it(missing, misshapen, named, strict, judge):
    def single_head_attention(x, *, params, causal):
        raise ValueError(misshapen if "w_q" in params else missing)

    functions = {"single_head_attention": single_head_attention}
    verdict = judge("sha-message", "single_head_attention", functions, arrays="numpy", strict=strict)
    departs = (Status.FAILED, "property") if strict else (Status.SKIPPED, "advice")
    assert (verdict.status, verdict.reason) == ((Status.PASSED, "") if named else departs)


def test_an_implementation_that_accepts_bad_weights_has_no_message(judge):
    functions = {"single_head_attention": lambda x, *, params, causal: x}
    verdict = judge("sha-message", "single_head_attention", functions, arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")


@pytest.mark.parametrize("property_", CAUGHT)
def test_a_property_catches_a_mistake_and_shows_a_small_input(property_, judge, spec):
    made = implementations()[CAUGHT[property_]["mistake"]].make()
    (component,) = components_of(spec.properties[property_], spec)
    verdict = judge(property_, component, functions_of(made, spec), arrays="numpy", dtype="float64")
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert re.fullmatch(CAUGHT[property_]["says"], verdict.message)
    assert re.match(r"smallest input: \w+=", verdict.detail)


def test_a_softmax_with_a_number_in_its_divisor_follows_shifts(judge):
    functions = {"softmax": no_maximum_and_an_epsilon().softmax}
    verdict = judge("sm-shift", "softmax", functions, arrays="numpy")
    assert re.fullmatch(r"softmax\(x \+ -?\d+\) differs from softmax\(x\)", verdict.message)


@pytest.mark.parametrize(
    ("property_", "smallest"),
    [
        ("sdpa-batch", "smallest input: batch=2, q_seq=2, kv_seq=2, width=2, seed=0"),
        ("pe-shift-is-rotation", "smallest input: seq=4, d_model=2, shift=1"),
        ("sm-simplex", "smallest input: batch=2, n=1, seed=0, factor=1"),
    ],
)
def test_the_input_shown_is_the_smallest_that_fails(property_, smallest, judge, spec):
    made = implementations()[CAUGHT[property_]["mistake"]].make()
    verdict = judge(property_, spec.properties[property_].component, functions_of(made, spec), arrays="numpy")
    assert verdict.detail == smallest
    assert f"  Input       {smallest}" in explain_verdict(Explained(verdict), spec)
    assert Verdict.from_json(verdict.as_json()) == verdict


@pytest.mark.parametrize("property_", ["beam-sentences", "beam-teacher-forcing", "beam-batch"])
def test_no_sentence_ends_by_the_word_that_begins_it(property_, judge, spec):
    functions = functions_of(asks_before_each_step(), spec)
    verdict = judge(property_, "beam_search", functions, arrays="numpy")
    assert verdict.status is Status.PASSED, verdict.message


def test_the_elements_that_violate_a_property_are_shown(judge):
    verdict = judge("sm-simplex", "softmax", {"softmax": not_normalised().softmax}, arrays="numpy")
    (difference,) = verdict.differences
    assert (difference.output, difference.first.index, difference.first.expected) == ("output", (0,), 1.0)
    assert difference.first.got == 0.5
    assert verdict.ratio == difference.ratio > 1000


def test_what_goes_wrong_only_at_times_is_a_violation_too(judge):
    # Once it ended in Hypothesis's own exception, and the command line in a traceback.
    made = implementations()["nondeterminism"].make()
    verdict = judge("sdpa-causality", ATTENTION, {ATTENTION: made.scaled_dot_product_attention}, arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert verdict.message.endswith(", but not every time: the same call gives different results")
    assert verdict.differences


def test_a_crash_that_comes_only_at_times_is_an_error_of_the_property(judge):
    calls = []

    def softmax(scores):
        calls.append(scores)
        if len(calls) == 3:
            raise MemoryError("for once")
        return build_textbook().softmax(scores)

    verdict = judge("sm-simplex", "softmax", {"softmax": softmax}, arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message.startswith("raised MemoryError: for once")


def test_equal_results_that_are_not_finite_keep_no_property(judge):
    def softmax(scores):
        return np.full_like(scores, np.nan)

    verdict = judge("sm-shift", "softmax", {"softmax": softmax}, arrays="numpy")
    assert (verdict.status, verdict.message) == (Status.FAILED, "output is not finite, though all inputs are")
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
    monkeypatch.setattr("goldformer.conformance.properties.subject.least_margin", lambda dtype: math.inf)
    functions = {name: getattr(build_textbook(), name) for name in ("greedy_decode", "beam_search")}
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
    return output if output.device.type == "cpu" else torch.zeros(output.shape)


def weights_made_anew_on_the_cpu(query, key, value, mask=None):
    output = attend(query, key, value, mask, query.shape[-1] ** -0.5)
    return {"weights": torch.full((*query.shape[:-1], key.shape[-2]), 1.0), "output": output}


@pytest.fixture
def stand_in(monkeypatch):
    """Choose the device that stands in for a GPU: pretend, or meta where PyTorch refuses pretend."""

    def choose(device):
        why_not = pretend_device.register()
        if device == "meta":
            monkeypatch.setattr(pretend_device, "register", lambda: "refused")
        elif why_not is not None:
            pytest.skip(why_not)

    return choose


def embeds_ids_on_the_cpu(ids, *, params):
    table = params["table"]
    return torch.nn.functional.embedding(ids if ids.is_cpu else torch.zeros_like(ids, device="cpu"), table)


def test_an_embedding_of_ids_on_the_cpu_is_caught_by_the_pretend_device_alone(judge, stand_in):
    stand_in("pretend")
    verdict = judge("device-hygiene", "token_embedding", {"token_embedding": embeds_ids_on_the_cpu, **ON_CUDA})
    assert verdict.message.startswith(MIXES.format("a tensor of ids or positions"))
    assert "(indices of aten.embedding.default is on cpu)" in verdict.message
    stand_in("meta")
    assert (
        judge("device-hygiene", "token_embedding", {"token_embedding": embeds_ids_on_the_cpu}).status is Status.PASSED
    )


MIXES = "mixes devices: {} is on the CPU, although the inputs are not ("
TERM = "a constant or another term"
#: An adapter that says that it works on a GPU.
ON_CUDA = {"DEVICES": ("cpu", "cuda")}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (scale_of_one_element_on_the_cpu, MIXES.format(TERM)),
        (mask_on_the_cpu, MIXES.format("a mask")),
        (mask_on_the_cpu_by_where, MIXES.format("a mask")),
        (zeros_on_the_cpu, MIXES.format(TERM)),
        (result_made_anew_on_the_cpu, "output is on cpu though the inputs are on "),
        (weights_made_anew_on_the_cpu, "weights is on cpu though the inputs are on "),
    ],
    ids=lambda value: getattr(value, "__name__", " "),
)
@pytest.mark.parametrize("device", ["meta", "pretend"])
def test_a_tensor_left_on_the_cpu_is_caught_without_a_gpu(function, says, device, judge, stand_in):
    stand_in(device)
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: function, **ON_CUDA})
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    # Right here, where nobody asks for a GPU.
    tolerated = judge("device-hygiene", ATTENTION, {ATTENTION: function})
    assert (tolerated.status, tolerated.reason, tolerated.is_tolerated) == (Status.SKIPPED, "gpu", True)
    assert tolerated.message == verdict.message
    assert judge("device-hygiene", ATTENTION, {ATTENTION: function}, strict=True).status is Status.FAILED
    if device == "meta" and says.startswith("mixes"):
        says = MIXES.format("a tensor")  # the meta device does not name the operand
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
    if query.device.type != "cpu":
        raise ValueError("no values")
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("function", "device"),
    [
        (asks_for_a_number, "meta"),
        (branches_on_its_data, "meta"),
        (goes_through_numpy, "meta"),
        (goes_through_numpy, "pretend"),
        (goes_through_the_cpu, "meta"),
        (raises_in_its_own_words, "meta"),
        (raises_in_its_own_words, "pretend"),
    ],
)
def test_code_that_looks_at_its_data_is_not_accused(function, device, strict, judge, stand_in):
    stand_in(device)
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: function}, strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message.startswith(f"cannot run on the {device} device: ")


@pytest.mark.parametrize("function", [asks_for_a_number, branches_on_its_data])
def test_code_that_looks_at_its_data_runs_on_the_pretend_device(function, judge, stand_in):
    stand_in("pretend")
    assert judge("device-hygiene", ATTENTION, {ATTENTION: function}).status is Status.PASSED


def test_a_result_that_stays_on_the_cpu_is_caught_by_the_pretend_device(judge, stand_in):
    stand_in("pretend")
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: goes_through_the_cpu, **ON_CUDA})
    assert (verdict.status, verdict.message) == (Status.FAILED, "output is on cpu though the inputs are on pretend")


def test_a_path_with_cpu_and_meta_in_it_is_no_evidence(tmp_path, spec):
    path = tmp_path / "cpu" / "metaformer" / "pretend.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        'ARRAYS = "torch"\ndef softmax(scores):\n    if not scores.is_cpu:\n        raise ValueError("no values")\n'
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
    assert verdict.message == "it runs only on cpu, as DEVICES declares"


@pytest.fixture
def called_on(monkeypatch):
    """Stand a CPU in for a CUDA device; return the devices on which arrays are made for calls."""
    library, called = LIBRARIES["torch"], []
    make, name_device = library.make, library.device

    def make_elsewhere(array, dtype, device):
        called.append(device)
        return make(array, dtype, "cpu" if device == "cuda" else device)

    def name_as_asked(array):
        return "cuda" if called[-1] == "cuda" else name_device(array)

    monkeypatch.setattr(library, "unavailable", lambda device: None)
    monkeypatch.setattr(library, "make", make_elsewhere)
    monkeypatch.setattr(library, "device", name_as_asked)
    return called


def judge_device_hygiene(spec, device, devices):
    """The verdict on a kernel that may read memory only of the devices it declares."""
    thing = SimpleNamespace(ARRAYS="torch", DEVICES=devices, scaled_dot_product_attention=zero_dimensional_scale)
    adapter = Adapter.from_object(thing, "kernel", spec)
    return check_property(spec.properties["device-hygiene"], ATTENTION, Bench(spec, adapter, "float32", device))


@pytest.mark.parametrize("register", [None, "refused"], ids=["pretend", "meta"])
def test_a_kernel_for_cuda_is_called_on_cuda_alone(register, called_on, spec, monkeypatch):
    monkeypatch.setattr(pretend_device, "register", lambda: register)
    verdict = judge_device_hygiene(spec, "cuda", ("cuda",))
    assert (verdict.status, verdict.message) == (Status.PASSED, "")
    assert set(called_on) == {"cuda"}


def test_on_a_gpu_nothing_is_called_on_a_device_without_memory(called_on, spec):
    assert judge_device_hygiene(spec, "cuda", ("cpu", "cuda")).status is Status.PASSED
    assert set(called_on) == {"cuda"}


@pytest.mark.parametrize("device", ["cpu", "pretend"])
def test_a_kernel_for_cuda_is_called_on_no_other_device(device, called_on, spec):
    verdict = judge_device_hygiene(spec, device, ("cuda",))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "device")
    assert verdict.message == f"kernel works on cuda, not on {device}"
    assert not called_on


def test_an_mps_kernel_is_called_on_no_simulated_device(called_on, spec):
    verdict = judge_device_hygiene(spec, "cpu", ("cpu", "mps"))
    assert verdict.message == "it runs only on cpu, mps, as DEVICES declares"
    assert not called_on


@pytest.mark.parametrize("strict", [False, True])
def test_numpy_has_no_devices_to_mix(strict, judge):
    verdict = judge("device-hygiene", "softmax", {"softmax": build_textbook().softmax}, arrays="numpy", strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message == "numpy has neither a pretend nor a meta device"


# What is drawn at random


@spoil(around=draw_dropout_mask)
def whole_tokens(original, shape, rate, random):
    return np.broadcast_to(original((*shape[:-1], 1), rate, random), shape)


@spoil(around=draw_dropout_mask)
def whole_channels(original, shape, rate, random):
    return np.broadcast_to(original((shape[0], 1, *shape[2:]), rate, random), shape)


@spoil(instead_of=drop_elements)
def drops_nothing(x, rate, seed):
    return x


@pytest.mark.parametrize(
    ("textbook", "said"),
    [
        (whole_tokens, "all channels lose the same ones"),
        (whole_channels, "all tokens lose the same ones"),
        (one_mask_for_all_samples, "all samples lose the same ones"),
        (drops_nothing, "at one place 0% of 70 samples lose theirs"),
    ],
)
def test_whatever_is_dropped_together_is_named(textbook, said, judge):
    functions = {"dropout": textbook().dropout}
    verdict = judge("dropout-independence", "dropout", functions, arrays="numpy")
    assert verdict.status is Status.FAILED
    assert verdict.message == f"elements are not dropped one by one: {said} at a rate of 0.5"


@spoil(around=drop_elements)
def same_seed_always(original, x, rate, seed):
    return original(x, rate, 7)


@pytest.mark.parametrize(
    ("property_", "textbook", "said"),
    [
        ("dropout-seed", same_seed_always, "seeds 0 and 1 drop the same elements"),
        ("sdpa-dropout", same_seed_always, "seeds 0 and 1 drop the same weights"),
        ("sdpa-dropout", forgets_the_seed, "the same seed drops other weights the second time"),
        ("sdpa-dropout", doubles_what_is_kept, None),
        ("sdpa-dropout", drops_nothing, "seeds 0 and 1 drop the same weights"),
        ("dropout-values", drops_nothing, "an element is neither 0 nor x/(1 − rate)"),
    ],
)
def test_the_seed_and_the_scale_are_told_apart(property_, textbook, said, judge):
    component = ATTENTION if property_ == "sdpa-dropout" else "dropout"
    verdict = judge(property_, component, {component: getattr(textbook(), component)}, arrays="numpy")
    # At the rate of one half that this property draws, twice is right.
    assert verdict.message == (said or "")


def test_weights_that_are_made_to_sum_to_one_again_are_caught(judge):
    @spoil(around=drop_weights)
    def renormalised(original, *given):
        kept = original(*given)
        return kept / np.maximum(kept.sum(-1, keepdims=True), 1e-9)

    verdict = judge("sdpa-dropout", ATTENTION, {ATTENTION: renormalised().scaled_dot_product_attention}, arrays="numpy")
    assert verdict.message == "a weight is neither 0 nor what it is without dropout, divided by 1 − rate"
