"""Changes of a whole result are read off the arrays, where no changed step explains it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters import Adapter, textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import CLOSEST, MISTAKE_FOUND, NOTHING_KNOWN
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours.results import Call, list_relations
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.model import GoldenArray


def say(spec, component, **functions):
    """Return the findings about a component of which some functions are one's own, and the others the textbook's."""
    names = [name for name in textbook.COMPONENTS if name.removesuffix("_gradient") == component]
    book = {"ARRAYS": "numpy"} | {name: getattr(textbook, name) for name in names} | functions
    bench = Bench(spec, Adapter.from_object(SimpleNamespace(**book), "mine.py", spec), "float32", "cpu")
    judgements = [judge_case(case, bench) for case in spec.cases_of(component) if not case.full_size]
    findings = list(diagnose(Diagnosis(spec).explain_all(judgements), spec))
    return {finding.label: finding.text for finding in findings}


def norm(change):
    return lambda x, *, params: np.asarray(change(textbook.layer_norm(x, params=params))).astype(x.dtype)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: y * 0.3, "The output is multiplied by 0.3."),
        (
            lambda y: y * y.shape[-1] ** -0.5,
            "The code uses the normalised channels, each times its gamma and plus",
        ),
        (np.exp, "The code uses the exponential of the normalised channels, each times"),
        (lambda y: np.roll(y, 1, 0), "The output is shifted by one towards the end of axis 0."),
    ],
)
def test_what_became_of_the_output_is_said(spec, change, said):
    told = say(spec, "layer_norm", layer_norm=norm(change))
    assert told[MISTAKE_FOUND].startswith(said)


def test_another_array_in_the_output_is_said(spec):
    told = say(spec, "layer_norm", layer_norm=lambda x, *, params: textbook.layer_norm(x, params=params) - 2 * x + x)
    assert told[MISTAKE_FOUND].startswith("The output is what it must be, minus x.")


def test_one_factor_of_some_gradients_is_said(spec):
    def gradients(x, cotangent, *, params):
        right = textbook.layer_norm_gradient(x=x, cotangent=cotangent, params=params)
        return {name: g if name == "x" else (g * 0.7).astype(g.dtype) for name, g in right.items()}

    told = say(spec, "layer_norm", layer_norm_gradient=gradients)
    assert told[MISTAKE_FOUND].startswith("Each of the gradients of gamma and beta is multiplied by 0.7.")


def test_what_fits_only_some_cases_is_not_said(spec):
    change = norm(lambda y: y * (0.3 if y.shape[-1] % 2 else 0.4))
    told = say(spec, "layer_norm", layer_norm=change)
    assert NOTHING_KNOWN in told
    assert not {MISTAKE_FOUND, CLOSEST} & told.keys()


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_not_finite_are_read_off_in_silence():
    golden = {"output": GoldenArray(np.ones(2), 1.0)}
    actual, right = {"output": np.array([np.inf, np.inf])}, {"output": np.array([1.0, -1.0])}
    found = list_relations("softmax", ["output"], golden, actual, right, Call({}, {}), backward=False)
    assert list(found) == []
