"""PyTorch, each variant in the cases that it is judged in; where masks of attention go, and what is declined."""

import math

import numpy as np
import pytest
import torch

from goldformer.adapters.builtin import torch_nn
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import check_case
from torch_variants import UNIT_ROUNDOFF, VARIANTS, draw, every_dtype, every_variant, tensors

# No two sizes alike; nn.MultiheadAttention wants query, heads and output of one width.
BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_V = 3, 2, 5, 7, 11, 13
D_MODEL, D_KEY, D_VALUE = HEADS * D_K, 17, 19
CAUSAL = np.arange(KV_SEQ) <= np.arange(Q_SEQ)[:, None]
LENGTHS = (np.arange(KV_SEQ) < np.array([7, 4, 2])[:, None])[:, None, None, :]


textbook = build_textbook()


def attention_arguments(mask=None, d_v=D_K):
    shapes = {"query": (Q_SEQ, D_K), "key": (KV_SEQ, D_K), "value": (KV_SEQ, d_v)}
    arrays = {name: draw(i, BATCH, HEADS, *shape) for i, (name, shape) in enumerate(shapes.items())}
    return arrays | {"mask": mask}


def multi_head_arguments(mask=None, *, d_key=D_KEY, d_value=D_VALUE, biases="qkvo"):
    inputs = {"query": (Q_SEQ, D_MODEL), "key": (KV_SEQ, d_key), "value": (KV_SEQ, d_value)}
    rows = {"q": D_MODEL, "k": d_key, "v": d_value, "o": D_MODEL}
    params = {f"w_{role}": draw(ord(role), n, D_MODEL, end=0.5) for role, n in rows.items()}
    params |= {f"b_{role}": draw(ord(role) + 100, D_MODEL, end=0.5) for role in biases}
    arrays = {name: draw(i, BATCH, *shape) for i, (name, shape) in enumerate(inputs.items())}
    return arrays | {"mask": mask, "num_heads": HEADS, "params": params}


def outputs(returned):
    """Keep the outputs that torch has too: the output, and of multi-head attention its weights and their mean."""
    if isinstance(returned, dict):
        given = ("weights", "average_weights") if "average_weights" in returned else ()
        return [returned[name] for name in ("output", *given)]
    return list(returned) if isinstance(returned, tuple) else [returned]


# Golden values

#: The components in which variants differ.
DIFFERENT = (
    "scaled_dot_product_attention", "multi_head_attention", "encoder_layer", "decoder_layer", "encoder", "decoder",
)  # fmt: skip
#: The fewest cases with values of all these that a variant is judged in: gelu has few networks, flash few masks.
JUDGED = {"torch-nn-gelu": 220, "torch-nn-flash": 280}


@pytest.mark.sample(2)
@every_dtype
@pytest.mark.parametrize("name", VARIANTS)
def test_every_case_that_is_judged_passes(name, dtype, bench, spec):
    made = bench(name, dtype)
    cases = [case for component in DIFFERENT for case in spec.cases_of(component) if not case.full_size]
    verdicts = [check_case(case, made) for case in cases]
    assert [(v.check, v.message) for v in verdicts if v.bad] == []
    assert len([v for v in verdicts if v.ratio is not None]) >= JUDGED.get(name, 340)


def test_the_components_that_variants_share_pass_every_case(bench, spec):
    made = bench("torch-nn", "float32")
    shared = made.adapter.functions.keys() - {*DIFFERENT}
    cases = [case for component in shared for case in spec.cases_of(component) if not case.full_size]
    verdicts = [check_case(case, made) for case in cases]
    assert [(v.check, v.message) for v in verdicts if v.bad] == []
    assert len([v for v in verdicts if v.ratio is not None]) >= 300


@every_variant
@pytest.mark.parametrize("mask", [LENGTHS, np.tri(KV_SEQ, dtype=bool)], ids=["lengths", "causal"])
def test_self_attention_without_gradients(adapter, mask):
    """One tensor thrice and no gradient: only then does nn.MultiheadAttention take its fast path."""
    arguments = multi_head_arguments(mask, d_key=D_MODEL, d_value=D_MODEL)
    same = arguments["key"]
    expected = textbook.multi_head_attention(**arguments | {"query": same, "value": same})["output"]
    t = tensors(arguments, "float64")
    with torch.no_grad():
        got = outputs(adapter.multi_head_attention(**t | {"query": t["key"], "value": t["key"]}))[0]
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-13)


# Where a mask goes


@pytest.mark.parametrize(
    ("mask", "name", "shape"),
    [(LENGTHS, "key_padding_mask", (BATCH, KV_SEQ)), (CAUSAL, "attn_mask", (BATCH * HEADS, Q_SEQ, KV_SEQ))],
)
@every_variant
def test_mask_takes_its_place(adapter, mask, name, shape, monkeypatch):
    seen = {}

    def spy(layer, state, inputs, options):
        seen.update(options, query=inputs[0])
        return torch.func.functional_call(layer, state, inputs, options)

    monkeypatch.setattr(torch_nn, "functional_call", spy)
    adapter.multi_head_attention(**tensors(multi_head_arguments(mask), "float32"))
    assert seen[name].shape == shape
    # Padding hides keys and causality too: nothing is True, or 0, that should be ignored.
    hidden = seen[name] == -math.inf if adapter.additive_masks else seen[name]
    assert hidden.dtype == torch.bool
    assert not hidden[0, ..., 0].any()
    assert hidden[-1, ..., -1].any()
    assert seen["query"].shape[0] == (BATCH if adapter.batch_first else Q_SEQ)


# A row without a key: each variant does what it declares, in every dtype, by either way in


def empty_rows(mask_of):
    """A mask that leaves sample 1, or its query 3, without a key."""
    mask = np.ones((BATCH, 1, 1 if mask_of == "keys" else Q_SEQ, KV_SEQ), dtype=bool)
    mask[1, 0, 0 if mask_of == "keys" else 3] = False
    return mask


def kind(row):
    if row.isnan().all():
        return "nan"
    return "zeros" if (row == 0).all() else "numbers"


@every_variant
@every_dtype
@pytest.mark.parametrize("mask_of", ["keys", "scores"])
def test_empty_row_is_as_declared(adapter, dtype, mask_of):
    mask = empty_rows(mask_of)
    attended = adapter.scaled_dot_product_attention(**tensors(attention_arguments(mask), dtype))
    assert kind(attended[1, :, 3]) == adapter.CONVENTIONS["scaled_dot_product_attention.empty_row"]
    assert kind(attended[0]) == "numbers"

    # Without biases, so that a row of zeros stays one through W_O.
    arguments = tensors(multi_head_arguments(mask, biases=""), dtype)
    for row in outputs(adapter.multi_head_attention(**arguments)):
        assert kind(row[1, ..., 3, :]) == adapter.CONVENTIONS["multi_head_attention.empty_row"]
        assert kind(row[0]) == "numbers"


# What is not there, and what is declined


def test_names_are_those_of_the_registry():
    from goldformer.adapters.find import BUILT_IN

    # The fast path and flex_attention have few components, and tests of their own.
    others = {"torch-nn-fast-path", "torch-nn-flex"}
    assert {name for name in BUILT_IN if name.startswith("torch-nn")} == {*VARIANTS, *others}


@every_variant
def test_an_adapter_looks_like_a_module(adapter):
    assert adapter.ARRAYS == "torch"
    assert torch.__version__ == adapter.VERSION
    assert set(adapter.DTYPES) == set(UNIT_ROUNDOFF)
    attention = {"positional_encoding", "padding_mask", "fused_multi_head_attention", "single_head_attention"}
    for absent in attention | {"transformer", "label_smoothing"}:
        assert not hasattr(adapter, absent)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("w_q", (21, D_MODEL), "one width, embed_dim, for heads·d_k and query: 22 and 21 differ"),
        ("w_v", (D_VALUE, 26), "one width, embed_dim, for heads·d_k and heads·d_v: 22 and 26 differ"),
        ("w_o", (D_MODEL, 29), "one width, embed_dim, for heads·d_k and output: 22 and 29 differ"),
    ],
)
def test_widths_beyond_embed_dim_are_declined(name, shape, message):
    arguments = multi_head_arguments()
    arguments["params"][name] = draw(1, *shape)
    with pytest.raises(NotImplementedError, match=message):
        torch_nn.torch_nn.multi_head_attention(**tensors(arguments, "float64"))


def test_causal_mask_is_square():
    with pytest.raises(NotImplementedError, match="generate_square_subsequent_mask is square"):
        torch_nn.torch_nn.causal_mask(q_seq=2, kv_seq=3)


def test_flash_declines_with_its_reason():
    flash = torch_nn.torch_nn_flash.scaled_dot_product_attention
    wider = tensors(attention_arguments(d_v=D_V), "float64")
    with pytest.raises(NotImplementedError, match=r"no flash kernel: .* same last dimension"):
        flash(**wider)
    fewer_axes = {n: x if x is None else x[0] for n, x in tensors(attention_arguments(), "float64").items()}
    with pytest.raises(NotImplementedError, match=r"no flash kernel: .* to be 4 dimensional"):
        flash(**fewer_axes)


@every_variant
def test_key_and_value_of_two_lengths(adapter):
    arguments = tensors(attention_arguments(), "float64")
    arguments["value"] = arguments["value"][:, :, 1:]
    # A kernel that would read out of bounds is not run; the one that checks raises.
    reason = "Expected size" if adapter.backend == "math" else "pytorch/pytorch#193728"
    with pytest.raises(RuntimeError, match=reason):
        adapter.scaled_dot_product_attention(**arguments)


def test_other_errors_stay_errors():
    # NotImplementedError is a RuntimeError: ask for the very type.
    with pytest.raises(RuntimeError, match="must match the size") as raised:
        torch_nn.torch_nn_math.scaled_dot_product_attention(
            **tensors(attention_arguments(np.ones((6, 7), dtype=bool)), "float64")
        )
    assert raised.type is RuntimeError
    with pytest.raises(AssertionError, match="embed_dim must be divisible by num_heads"):
        torch_nn.torch_nn.multi_head_attention(**tensors(multi_head_arguments(), "float64") | {"num_heads": 3})
    with pytest.raises(IndexError, match="out of range"):
        torch_nn.torch_nn.token_embedding(torch.tensor([[7]]), params={"table": torch.ones(7, 3)})


def test_the_last_query_of_a_cached_call_sees_every_key():
    one = torch.tensor([[[[1.0, 0.0]]]])
    _, state = torch_nn.torch_nn.cached_attention(one, one, torch.tensor([[[[0.0]]]]))
    output, (keys, values) = torch_nn.torch_nn.cached_attention(one, one, torch.tensor([[[[2.0]]]]), state=state)
    assert output.item() == 1  # the mean of both values: the keys are equal
    assert keys.shape == (1, 1, 2, 2)
    assert values.flatten().tolist() == [0, 2]
    with pytest.raises(NotImplementedError, match="causal_lower_right joins no other mask"):
        torch_nn.torch_nn.cached_attention(one, one, one, torch.ones(1, 1, 1, 1, dtype=torch.bool))
