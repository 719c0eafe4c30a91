"""Each mistake that only tensors show is caught by whoever says so, without a GPU, in words that help a reader."""

import re

import pytest
import torch

from goldformer.adapters import Adapter, pretend_device
from goldformer.adapters.builtin import reference
from goldformer.conformance.diagnosis.mistakes import torch_implementations
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import components_of

HERE = r"\(.*on_torch\.py:\d+, \w+\)"


def mixes(words, operand):
    """The message of the property about an operand that is on the CPU."""
    return (
        f"mixes devices: {words} is on the CPU, although the inputs are not "
        rf"\(raised RuntimeError: .* \({operand} is on cpu\) {HERE}\)"
    )


#: By mistake: the property that lists it, and what is said of it on the pretend device.
CAUGHT = {
    "pe-not-buffer": ("device-hygiene", mixes("a constant or another term", r"other of aten\.add\.Tensor")),
    "device-const": ("device-hygiene", mixes("a constant or another term", r"other of aten\.mul\.Tensor")),
    "device-mask": ("device-hygiene", mixes("a mask", r"mask of aten\.masked_fill\.Scalar")),
    "device-weight": ("device-hygiene", mixes("a weight or another factor of a product", r"mat2 of aten\.mm\.default")),
    "device-ids": ("device-hygiene", mixes("a tensor of ids or positions", r"index of aten\.index_select\.default")),
    "device-part": (
        "device-hygiene",
        mixes("one of several tensors that are joined", r"tensors of aten\.cat\.default"),
    ),
    "device-target": (
        "device-hygiene",
        mixes("a tensor that results are written to", r"self of aten\.scatter_\.value"),
    ),
    "device-result": ("device-hygiene", "output is on cpu though the inputs are on pretend"),
    "non-contiguous": (
        "memory-layout",
        "needs contiguous arrays: with transposed views of the same values it raised RuntimeError: view size is not "
        rf"compatible with input tensor's size and stride .*Use \.reshape\(\.\.\.\) instead\. {HERE}",
    ),
    "reads-around": (
        "memory-around",
        "arrays that are parts of larger ones, whose other elements are nan, give something else: "
        "output is not finite, though all inputs are",
    ),
    "writes-around": ("memory-around", "writes to memory around value, which is a part of a larger array"),
    "kept-by-address": ("same-storage", "other numbers in the same arrays do not give their own result"),
    "result-overwritten": ("own-results", "a later call changes the output that an earlier call returned"),
    "result-aliases-input": (
        "own-results",
        "the result shares memory with x: a change of one in place changes the other",
    ),
    "uninitialised": (
        "new-memory",
        "memory that is allocated without values and holds nan changes the result: output is not finite, though all "
        "inputs are",
    ),
}
#: Golden cases may show it, or not: memory holds whatever it held before.
BY_CHANCE = "uninitialised"
#: A value or an error of a single call tells.
BY_CASES = {"grad-cut"}
WITHOUT_CUDA = {"pe-hard-cuda"}


@pytest.fixture
def bench(spec):
    """A bench for the implementation of a mistake."""

    def make(mistake, dtype="float32"):
        adapter = Adapter.from_object(torch_implementations()[mistake].make(), mistake, spec)
        # Strictly, as refusing a view is only advised against.
        return Bench(spec, adapter, dtype, "cpu", Policy(strict=True))

    return make


def test_every_mistake_is_tried():
    assert torch_implementations().keys() == CAUGHT.keys() | BY_CASES | WITHOUT_CUDA


@pytest.mark.skipif(pretend_device.register() is not None, reason="the meta device misses some of them")
@pytest.mark.parametrize("mistake", CAUGHT)
def test_the_property_that_lists_it_catches_it_in_its_component_alone(mistake, bench, spec):
    name, says = CAUGHT[mistake]
    prop = spec.properties[name]
    assert [p.id for p in spec.properties.values() if mistake in p.catches] == [name]
    verdicts = [check_property(prop, component, bench(mistake)) for component in components_of(prop, spec)]
    (verdict,) = (v for v in verdicts if v.bad and v.reason != "not-implemented")
    assert (verdict.component, verdict.status) == (spec.mistakes[mistake].component, Status.FAILED)
    assert re.fullmatch(says, verdict.message, re.DOTALL)


@pytest.mark.parametrize("mistake", [mistake for mistake in CAUGHT if mistake != BY_CHANCE])
def test_on_the_cpu_with_arrays_as_they_were_made_it_is_right(mistake, bench, spec):
    component = spec.mistakes[mistake].component
    plain = [case for case in spec.cases_of(component) if case.golden is not None]
    verdicts = [check_case(case, bench(mistake)) for case in plain]
    assert [f"{v.check}: {v.message}" for v in verdicts if v.bad] == []
    assert any(v.status is Status.PASSED for v in verdicts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it is right on that GPU")
def test_without_a_gpu_cuda_by_name_is_an_error_everywhere(bench, spec):
    at = bench("pe-hard-cuda")
    golden = [case for case in spec.cases_of("positional_encoding") if case.golden is not None]
    listing = [prop for prop in spec.properties.values() if "pe-hard-cuda" in prop.catches]
    verdicts = [check_case(case, at) for case in golden]
    verdicts += [check_property(prop, "positional_encoding", at) for prop in listing]
    judged = [v for v in verdicts if v.status is not Status.SKIPPED]
    assert {(v.status, v.reason) for v in judged} == {(Status.ERRORED, "raised")}
    hint = "; a tensor is moved to CUDA, whatever the inputs are on: use the device of an input, such as x.device"
    assert all(re.fullmatch(rf"raised \w+: .*(CUDA|NVIDIA).*{HERE}{hint}", v.message, re.DOTALL) for v in judged)
    assert listing


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_case_that_lists_a_cut_gradient_catches_it(dtype, bench, spec):
    listing = [case for case in spec.cases.values() if "grad-cut" in case.kills]
    verdicts = [v for case in listing if (v := check_case(case, bench("grad-cut", dtype))).reason != "convention"]
    assert {v.reason for v in verdicts} == {"no-gradient"}
    says = (
        r"no gradient reaches (query, )?key: it is never used, or the graph is cut \(detach, \.data, a copy, no_grad\)"
    )
    assert all(re.fullmatch(says, v.message) for v in verdicts)
    assert verdicts


def test_a_cut_gradient_leaves_the_values_right(bench, spec):
    golden = [c for c in spec.cases_of("scaled_dot_product_attention") if c.golden is not None and c.cotangent is None]
    verdicts = [check_case(case, bench("grad-cut")) for case in golden]
    assert [f"{v.check}: {v.message}" for v in verdicts if v.bad] == []
    assert any(v.status is Status.PASSED for v in verdicts)


def test_everything_else_is_the_reference():
    for mistaken in torch_implementations().values():
        made = mistaken.make()
        assert made.causal_mask is reference.causal_mask
        # One component, and nothing copied.
        assert len([name for name, thing in vars(made).items() if thing is not getattr(reference, name)]) == 1
