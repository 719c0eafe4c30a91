"""Mistakes that only lose digits: caught and named in every component that has them, in float32 and float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter
from goldformer.adapters.builtin import reference
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.kill import measure
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec import Spec

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}

#: The components with parameters, and those with inputs that are floats.
WEIGHTS = (
    "feed_forward", "layer_norm", "output_probabilities", "fused_multi_head_attention", "multi_head_attention",
    "single_head_attention", "single_head_attention_step", "encoder_layer", "decoder_layer", "encoder", "decoder",
    "transformer", "greedy_decode", "beam_search",
)  # fmt: skip
INPUTS = (
    "softmax", "layer_norm", "feed_forward", "positional_encoding", "pad_or_truncate", "dropout", "cross_entropy",
    "kl_divergence", "label_smoothing", "output_probabilities", "scaled_dot_product_attention",
    "fused_multi_head_attention", "multi_head_attention", "single_head_attention", "single_head_attention_step",
    "encoder_layer", "decoder_layer", "encoder", "decoder",
)  # fmt: skip
PRODUCTS = ("scaled_dot_product_attention", *(name for name in WEIGHTS if name != "layer_norm"))


def keep_in(dtype: torch.dtype, thing: Any) -> Any:
    """Round floats as code does whose gradients pass a cast."""
    if not (torch.is_tensor(thing) and thing.is_floating_point()):
        return thing
    return thing + (thing.to(dtype).to(thing.dtype) - thing).detach()


def lose(component: str, half: str, *, inputs: bool, params: bool) -> SimpleNamespace:
    """Return the reference whose function of a component rounds what it is given."""
    function: Callable[..., Any] = getattr(reference, component)
    keep = functools.partial(keep_in, HALF[half])

    @functools.wraps(function)
    def run(**named: Any) -> Any:
        changed = {
            name: ({key: keep(array) for key, array in thing.items()} if params else thing)
            if name == "params"
            else (keep(thing) if inputs else thing)
            for name, thing in named.items()
        }
        return function(**changed)

    return SimpleNamespace(ARRAYS="torch", **{component: run})


def name_causes(made: SimpleNamespace, component: str, dtype: str, spec: Spec) -> list[tuple[str, tuple[str, ...]]]:
    """Return what the diagnosis says of a component's cases with all bits, and of two others, which pass."""
    bench = Bench(spec, Adapter.from_object(made, "made", spec), dtype, "cpu")
    cases = [case for case in spec.cases_of(component) if case.has_all_bits or "every-bit" in case.id]
    judged = [judge_case(case, bench) for case in (*spec.cases_of(component)[:2], *cases)]
    verdicts = Diagnosis(spec).explain_all(judged)
    assert {v.check for v in verdicts if v.bad} >= {case.id for case in cases}
    return [(finding.label, finding.mistakes) for finding in diagnose(verdicts, spec) if finding.mistakes]


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("component", WEIGHTS)
def test_weights_in_a_half_type_are_named(component, half, dtype, spec: Spec):
    made = lose(component, half, inputs=False, params=True)
    assert name_causes(made, component, dtype, spec) == [(MISTAKE_FOUND, (f"weights-in-{half}",))]


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("component", INPUTS)
def test_inputs_in_a_half_type_are_named(component, half, dtype, spec: Spec):
    made = lose(component, half, inputs=True, params=False)
    assert name_causes(made, component, dtype, spec) == [(MISTAKE_FOUND, (f"inputs-in-{half}",))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("component", [name for name in WEIGHTS if name in INPUTS])
def test_weights_and_inputs_in_bfloat16_are_named_as_one(component, dtype, spec: Spec):
    made = lose(component, "bfloat16", inputs=True, params=True)
    assert name_causes(made, component, dtype, spec) == [(MISTAKE_FOUND, ("arguments-in-bfloat16",))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("half", HALF)
def test_a_table_in_a_half_type_is_named(half, dtype, spec: Spec):
    made = lose("token_embedding", half, inputs=False, params=True)
    assert name_causes(made, "token_embedding", dtype, spec) == [(MISTAKE_FOUND, (f"table-in-{half}",))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mistake", ["products-in-tf32", "products-in-bfloat16", "sums-in-float16", "sums-in-bfloat16"])
def test_products_and_sums_are_caught_in_every_component_that_has_them(mistake, dtype, spec: Spec):
    cases = [case for name in PRODUCTS for case in spec.cases_of(name) if case.has_all_bits]
    kill = measure(implementations()[mistake], dtype, cases, spec)
    assert {cell.component for cell in kill.cells if cell.killed} == set(PRODUCTS)


@pytest.mark.parametrize("mistake", [id_ for id_, made in implementations().items() if made.loses_digits])
def test_numbers_that_a_half_type_holds_lose_none(mistake, spec: Spec):
    if mistake.partition("-")[0] in ("products", "sums"):
        pytest.skip("their results have more digits than their arguments")
    cases = [spec.cases[id_] for id_ in ("ffn-distinct-sizes", "mha-distinct-sizes", "emb-distinct-sizes")]
    assert not any(cell.killed for cell in measure(implementations()[mistake], "float32", cases, spec).cells)


def test_a_gradient_passes_through_the_rounding(spec: Spec):
    """The gradient of the values that are rounded, as that of a cast is."""
    made = implementations()["arguments-in-bfloat16"]
    (gradient,) = [case for case in spec.cases_of("feed_forward") if case.id == "ffn-gradient"]
    kill = measure(made, "float32", [gradient], spec)
    assert [cell.killed for cell in kill.cells] == [False]
    assert np.isfinite(kill.cells[0].margin)
