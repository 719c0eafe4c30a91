"""Of neighbours that give the same, one is compared with later cases, until a case tells them apart."""

from __future__ import annotations

import pytest
from tests.support.wild import make_bench

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.diagnosis.twins import Twins
from goldformer.conformance.judging.cases import Bench, judge_case

ATTENTION = "scaled_dot_product_attention"
#: Without a mask both give the same; with padding they do not.
CAUSAL, CAUSAL_TOO = f"{ATTENTION}.mask.always-causal", f"{ATTENTION}.mask.always-causal-too"
RESIDUAL = "encoder_layer.edit@run_sublayer#0/add_residual/"
LEFT_OUT, FROM_X = f"{RESIDUAL}output@zero", f"{RESIDUAL}result@read:encoder_layer/x"


def judge(spec, made, *cases):
    """Return the judgements of some cases with a neighbour."""
    bench = Bench(spec, Adapter.from_object(build_textbook(find_made(made).steps), "mine.py", spec), "float32", "cpu")
    return [judge_case(spec.cases[case], bench) for case in cases]


def set_aside(spec, case, *ids):
    """Return the candidates that are kept, and those that are set aside, where the last one is the code's mistake."""
    twins = Twins(spec, Textbooks(spec, None))
    failure = FailingCase.of(judge(spec, ids[-1], case)[0])
    kept = twins.set_aside(dict.fromkeys(map(Candidate, ((id_,) for id_ in ids)), 0.0), failure)
    return [c.mistakes[0] for c in kept], [c.mistakes[0] for one in kept for c in twins.list_aside(one)]


def test_a_neighbour_that_gives_the_same_is_set_aside(spec):
    assert set_aside(spec, "enc-padding", FROM_X, LEFT_OUT) == ([FROM_X], [LEFT_OUT])


def test_what_differs_by_eps_alone_is_kept(spec):
    # LN(x + x) and LN(x)
    other = f"{RESIDUAL}output@read:encoder_layer/x"
    assert set_aside(spec, "enc-padding", other, FROM_X) == ([other, FROM_X], [])


def test_a_mistake_of_the_catalogue_is_never_set_aside(spec):
    assert set_aside(spec, "sdpa-causal", "scale-twice", "scale-no-root") == (["scale-twice", "scale-no-root"], [])


@pytest.mark.parametrize("made", [CAUSAL, CAUSAL_TOO])
def test_a_later_case_tells_twins_apart(spec, made):
    judgements = judge(spec, made, "sdpa-four-axes", "sdpa-padding-per-sample")
    (found,) = [f for f in diagnose(Diagnosis(spec).explain_all(judgements), spec) if f.label == MISTAKE_FOUND]
    assert found.mistakes == (made,)


@pytest.mark.xfail(reason="edits come after listed changes, and the search of a decoder layer ends before this one")
def test_a_twin_of_what_a_passing_case_refutes_is_compared_with_gradients_too(spec, tmp_path):
    # Few causes are compared with a gradient, those first that explain most cases.
    bench = make_bench("averaged_weights", "memory-mask-left-out", tmp_path, spec)
    cases = [case for case in spec.cases_of("decoder_layer") if not case.full_size]
    verdicts = Diagnosis(spec).explain_all([judge_case(case, bench) for case in cases])
    (found,) = [f for f in diagnose(verdicts, spec) if f.label == MISTAKE_FOUND]
    assert found.mistakes == ("decoder_layer.edit@run_sublayer#1/weigh_keys/mask@mask:without-padding",)
