"""Each mistake in a backward pass or a training step is caught by whoever says so, by nobody else, and by far.

That the gradients are those of code with the mistake in PyTorch, tests/spec/test_gradient_cases.py holds.
"""

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations, torch_implementations
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.spec.formulas.options import OPTIONS

STEP = "single_head_attention_step"
MISTAKES = [id_ for id_, made in implementations().items() if made.module == "gradients"]
STEPS = {
    "sgd-sign": "shas-gradient",
    "sgd-input-gradient-after-step": "shas-gradient",
    "sgd-sequential": "shas-gradient",
    "sgd-accumulated": "shas-one-by-one",
    "sgd-forward-stale": "shas-one-by-one",
}
#: What is summed over one axis has another shape, and no number is compared.
SHAPED = {"ln-bwd-rank"}


def made(mistake):
    return implementations()[mistake].make()


def test_every_mistake_is_implemented(spec):
    on_numpy, on_torch = implementations(), torch_implementations()
    assert not on_numpy.keys() & on_torch.keys()
    assert on_numpy.keys() | on_torch.keys() == spec.mistakes.keys()
    assert {id_: mistaken.id for id_, mistaken in {**on_numpy, **on_torch}.items()} == {
        id_: id_ for id_ in spec.mistakes
    }


@pytest.mark.sample(15)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("mistake", [id_ for id_ in MISTAKES if id_ not in SHAPED])
def test_it_is_far_beyond_rounding(mistake, dtype, verdicts_on_mistake):
    assert all((verdict.ratio or 0) >= 10 for verdict in verdicts_on_mistake(mistake, dtype))


def test_a_wrong_shape_is_named(verdicts_on_mistake):
    assert {verdict.reason for verdict in verdicts_on_mistake("ln-bwd-rank", "float32")} == {"wrong-shape"}


@pytest.mark.sample(12)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_just_the_cases_that_claim_it(mistake, spec):
    bench = Bench(spec, Adapter.from_object(made(mistake), mistake, spec), "float64", "cpu")
    backward = [case for case in spec.cases.values() if case.cotangent is not None or case.component == STEP]
    verdicts = [check_case(case, bench) for case in backward if case.error is None]
    judged = [v for v in verdicts if v.status is not Status.SKIPPED]
    # A step may be one of another component too, whose cases do not list what is wrong in it.
    claiming = {v.component for v in judged if mistake in v.catches}
    bad = [v.check for v in judged if v.bad and v.component in claiming]
    assert bad == [v.check for v in judged if mistake in v.catches]
    assert any(v.bad for v in judged)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("mistake", STEPS)
def test_a_property_fails_too(mistake, dtype, spec):
    bench = Bench(spec, Adapter.from_object(made(mistake), mistake, spec), dtype, "cpu")
    verdicts = [check_property(prop, STEP, bench) for prop in spec.properties.values() if prop.component == STEP]
    assert [v.check for v in verdicts if v.bad] == [STEPS[mistake]]


# Under the convention that an empty row has no weights


EMPTY_ROW = "sdpa-gradient-empty-row-zeros"


def verdict_with_zeros(spec, *layers):
    book = build_textbook(OPTIONS["empty_row", "zeros"], *layers, CONVENTIONS={"empty_row": "zeros"})
    adapter = Adapter.from_object(book, "zeros", spec)
    return check_case(spec.cases[EMPTY_ROW], Bench(spec, adapter, "float32", "cpu"))


def test_the_case_of_zeros_catches_what_it_lists(spec):
    listed = [id_ for id_ in spec.cases[EMPTY_ROW].kills if id_ in implementations()]
    assert listed
    for mistake in listed:
        verdict = verdict_with_zeros(spec, implementations()[mistake].steps)
        assert verdict.reason == "not-finite" or verdict.ratio >= 10, mistake


def test_the_case_of_zeros_passes_without_a_mistake(spec):
    assert verdict_with_zeros(spec).status is Status.PASSED


# Without a mistake


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_textbook_passes_every_gradient_case(dtype, spec):
    bench = Bench(spec, Adapter.from_object(build_textbook(), "textbook", spec), dtype, "cpu")
    verdicts = [check_case(case, bench) for case in spec.cases.values() if case.cotangent is not None]
    judged = [v for v in verdicts if v.reason not in ("convention", "dtype", "advice")]
    assert {v.status for v in judged} == {Status.PASSED}


# The training step in PyTorch, as it is written

X, OUTPUT_GRADIENT = (torch.from_numpy(np.random.default_rng(seed).integers(-32, 33, (4, 3)) / 32) for seed in (1, 2))
WEIGHTS = {
    f"w_{role}": torch.from_numpy(np.random.default_rng(seed).integers(-32, 33, (3, 3)) / 32)
    for seed, role in enumerate("qkv", 3)
}
LEARNING_RATE = 0.125


def output(x, weights):
    query, key, value = (x @ weight for weight in weights.values())
    scores = query @ key.T / 3**0.5
    return scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -1e9).softmax(-1) @ value


def leaves():
    """The input and the weights, fresh and without gradients."""
    x = X.clone().requires_grad_()
    return x, {name: weight.clone().requires_grad_() for name, weight in WEIGHTS.items()}


def move(weights, rate=LEARNING_RATE):
    with torch.no_grad():
        for weight in weights.values():
            weight.sub_(rate * weight.grad)


def written_steps(rate=LEARNING_RATE, clear=True):
    """Two steps, both gradients by autograd."""
    x, weights = leaves()
    for _ in range(2):
        x.grad = None
        for weight in weights.values():
            weight.grad = None if clear else weight.grad
        output(x, weights).backward(OUTPUT_GRADIENT)
        move(weights, rate)
    return {"x_gradient": x.grad, **weights}


def written_input_gradient_after_the_step():
    steps = written_steps()
    x, weights = leaves()
    output(x, weights).backward(OUTPUT_GRADIENT)
    move(weights)
    # The second step's gradients of query, key and value go back through the weights after it.
    query, key, value = (x.detach() @ w.detach() for w in weights.values())
    projected = [p.requires_grad_() for p in (query, key, value)]
    scores = projected[0] @ projected[1].T / 3**0.5
    hidden = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -1e9)
    (hidden.softmax(-1) @ projected[2]).backward(OUTPUT_GRADIENT)
    back = sum(p.grad @ steps[name].T for p, name in zip(projected, WEIGHTS, strict=True))
    return {**steps, "x_gradient": back}


def written_one_weight_after_the_other():
    _, weights = leaves()
    for _ in range(2):
        x = X.clone().requires_grad_()
        output(x, {name: weight.detach() for name, weight in weights.items()}).backward(OUTPUT_GRADIENT)
        for weight in weights.values():
            (gradient,) = torch.autograd.grad(output(X, weights), weight, OUTPUT_GRADIENT)
            with torch.no_grad():
                weight.sub_(LEARNING_RATE * gradient)
    return {"x_gradient": x.grad, **weights}


def written_back_through_the_first_forward_pass():
    x, weights = leaves()
    output(x, weights).backward(OUTPUT_GRADIENT)
    first = {name: weight.grad for name, weight in weights.items()}
    once = {name: WEIGHTS[name] - LEARNING_RATE * first[name] for name in WEIGHTS}
    # The gradients of query, key and value stay those of the first pass; only W in dQ·Wᵀ is new.
    projected = [(X @ weight).requires_grad_() for weight in WEIGHTS.values()]
    scores = projected[0] @ projected[1].T / 3**0.5
    hidden = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -1e9)
    (hidden.softmax(-1) @ projected[2]).backward(OUTPUT_GRADIENT)
    back = sum(p.grad @ once[name].T for p, name in zip(projected, WEIGHTS, strict=True))
    return {"x_gradient": back, **{name: once[name] - LEARNING_RATE * first[name] for name in WEIGHTS}}


WRITTEN = {
    "sgd-sign": lambda: written_steps(rate=-LEARNING_RATE),
    "sgd-accumulated": lambda: written_steps(clear=False),
    "sgd-input-gradient-after-step": written_input_gradient_after_the_step,
    "sgd-sequential": written_one_weight_after_the_other,
    "sgd-forward-stale": written_back_through_the_first_forward_pass,
}


@pytest.mark.parametrize("mistake", STEPS)
def test_two_steps_are_those_of_code_with_the_mistake(mistake):
    params = {name: weight.numpy() for name, weight in WEIGHTS.items()}
    got = made(mistake).single_head_attention_step(
        X.numpy(), OUTPUT_GRADIENT.numpy(), causal=True, learning_rate=LEARNING_RATE, steps=2, params=params
    )
    for name, expected in WRITTEN[mistake]().items():
        np.testing.assert_allclose(got[name], expected.detach(), rtol=0, atol=1e-13, err_msg=name)
