"""Conventions that the parameters of a call decide: what a case draws, what a contract refuses, what formulas read."""

from __future__ import annotations

import numpy as np
import pytest

from goldformer.spec import Spec
from goldformer.spec.call import check_call
from goldformer.spec.oracle.derive import apply
from goldformer.spec.shapes import ContractViolation

MODELS = ("transformer", "greedy_decode", "beam_search")
#: The conventions that the parameters of a call decide.
DECIDED = frozenset({"biases", "final_norm", "output_layer", "positions"})


def test_the_parameters_of_a_model_decide_these_conventions(spec: Spec):
    by_contract = {name: contract.conventions_of_params for name, contract in spec.contracts.items()}
    assert all(by_contract[name] == DECIDED for name in MODELS)
    assert by_contract["encoder"] == by_contract["decoder"] == {"biases", "final_norm"}


@pytest.mark.parametrize(
    ("case", "there", "absent"),
    [
        ("tf-distinct-sizes", {"w_vocab", "b_vocab"}, {"position_table", "encoder_norm.gamma", "decoder_norm.beta"}),
        ("tf-no-biases", {"w_vocab"}, {"b_vocab", "position_table", "encoder_norm.gamma"}),
        (
            "tf-final-norm",
            {"encoder_norm.gamma", "encoder_norm.beta", "decoder_norm.gamma", "decoder_norm.beta"},
            set(),
        ),
        ("tf-tied", {"table"}, {"w_vocab", "b_vocab"}),
        ("tf-tied-with-bias", {"b_vocab"}, {"w_vocab"}),
        ("tf-output-without-bias", {"w_vocab"}, {"b_vocab"}),
        ("tf-learned-positions", {"position_table"}, {"encoder_norm.gamma"}),
        # No biases, and yet a final norm with a beta.
        ("encs-final-norm-one-layer", {"norm.gamma", "norm.beta"}, {"encoder.0.feed_forward.b_1"}),
    ],
)
def test_a_case_has_the_parameters_of_its_options(spec: Spec, case: str, there: set[str], absent: set[str]):
    params = spec.cases[case].params.keys()
    assert there <= params
    assert not absent & params


def test_an_option_that_a_case_does_not_name_is_not_filled_in(spec: Spec):
    case = spec.cases["tf-distinct-sizes"]
    assert not DECIDED & (case.only_with.keys() | case.conventions.keys())
    # Its parameters are those of the default options.
    assert {name for name in case.params if name in case.dependent} >= {"w_vocab", "b_vocab"}
    named = spec.cases["tf-learned-positions"]
    assert {name: named.only_with[name] for name in DECIDED & named.only_with.keys()} == {"positions": "learned"}


def call_with(spec: Spec, case: str, **changed: np.ndarray | None) -> None:
    """Check the call of a case with some parameters replaced or, if None, left out."""
    given = spec.cases[case]
    params = {**given.param_arrays, **{name.replace("__", "."): array for name, array in changed.items()}}
    check_call(spec.contracts[given.component], given.input_arrays, params, given.attributes)


def test_a_final_norm_is_there_as_a_whole(spec: Spec):
    call_with(spec, "tf-final-norm")
    nothing = dict.fromkeys(("encoder_norm__gamma", "encoder_norm__beta", "decoder_norm__gamma", "decoder_norm__beta"))
    call_with(spec, "tf-final-norm", **nothing)
    with pytest.raises(ContractViolation, match=r"^decoder_norm.beta is missing, though encoder_norm.gamma is there$"):
        call_with(spec, "tf-final-norm", decoder_norm__beta=None)


def test_there_is_a_position_for_each_token_of_either_side(spec: Spec):
    call_with(spec, "tf-learned-positions", position_table=np.ones((5, 6)))
    with pytest.raises(ContractViolation, match=r"^position_table has 4 rows, fewer than source_seq, 5$"):
        call_with(spec, "tf-learned-positions", position_table=np.ones((4, 6)))


def test_a_tied_table_needs_no_matrix_and_may_have_a_bias(spec: Spec):
    call_with(spec, "tf-tied", b_vocab=np.ones(7))
    with pytest.raises(ContractViolation, match="b_vocab has an axis of 8 where vocab = 7 by table"):
        call_with(spec, "tf-tied", b_vocab=np.ones(8))


def run(spec: Spec, case: str, **changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """Compute the formula of a case in float64 with some parameters replaced or, if None, left out."""
    given = spec.cases[case]
    named = {name.replace("__", "."): array for name, array in changed.items()}
    params = {n: a for n, a in {**given.param_arrays, **named}.items() if a is not None}
    return apply(given.component, float, given.input_arrays, params, given.attributes, {})


def test_a_tied_table_is_its_transpose_as_a_matrix(spec: Spec):
    tied = run(spec, "tf-tied")["logits"]
    apart = run(spec, "tf-tied", w_vocab=spec.cases["tf-tied"].param_arrays["table"].T)["logits"]
    np.testing.assert_allclose(tied, apart, rtol=0, atol=1e-12)


def test_a_final_norm_takes_the_last_layer_and_leaves_the_layers(spec: Spec):
    with_norm = run(spec, "encs-final-norm")
    without = run(spec, "encs-final-norm", norm__gamma=None, norm__beta=None)
    params = spec.cases["encs-final-norm"].param_arrays
    last = with_norm["layers"][-1]
    centred = last - last.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(with_norm["output"], normal * params["norm.gamma"] + params["norm.beta"], atol=1e-12)
    np.testing.assert_array_equal(with_norm["layers"], without["layers"])
    np.testing.assert_array_equal(without["output"], last)


def test_learned_positions_that_are_the_sinusoids_give_what_these_give(spec: Spec):
    zeros = np.zeros((1, 5, 6))
    sinusoids = apply("positional_encoding", float, {"x": zeros}, {}, {}, {})["output"][0]
    learned = run(spec, "tf-learned-positions", position_table=sinusoids)
    computed = run(spec, "tf-learned-positions", position_table=None)
    for name in ("source_embedded", "target_embedded", "logits"):
        np.testing.assert_allclose(learned[name], computed[name], rtol=0, atol=1e-12)


def test_a_fixed_row_is_a_constant_of_the_formula(spec: Spec):
    given = spec.cases["emb-fixed-pad-row"]
    table = given.param_arrays["table"] + 1j * 2.0**-100
    ids = given.input_arrays["ids"]
    call = ({"ids": ids}, {"table": table}, {"pad_id": 0})
    fixed, learned = (
        apply("token_embedding", float, *call, {"pad_row": option})["output"] for option in ("fixed", "learned")
    )
    np.testing.assert_array_equal(fixed.real, learned.real)
    assert np.all((fixed.imag == 0) == (ids == 0)[..., None])
    assert np.all(learned.imag != 0)
