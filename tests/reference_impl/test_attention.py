"""Softmax, attention, masks and the single head, against the documents' numbers, plain Python and torch."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from goldformer.reference_impl import (
    SingleHeadAttention,
    SingleHeadResult,
    attention_scores,
    causal_mask,
    padding_mask,
    positional_encoding,
    scaled_dot_product_attention,
    scaled_scores,
    softmax,
)
from reference_functions import (
    single_head_attention,
    single_head_attention_gradient,
    single_head_attention_step,
)

BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_V = 3, 2, 5, 7, 11, 13
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got: Tensor, expected: object, tolerance: float = 1e-14) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=0, atol=tolerance)


Rows = list[list[float]]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def attention_in_plain_python(
    query: Rows, key: Rows, value: Rows, sees: list[list[bool]] | None = None
) -> tuple[Rows, Rows]:
    """The formula, number by number: no tensor, no matrix product."""
    all_weights, all_outputs = [], []
    for i, q in enumerate(query):
        seen = [j for j in range(len(key)) if sees is None or sees[i][j]]
        powers = {j: math.exp(dot(q, key[j]) / math.sqrt(len(q))) for j in seen}
        weights = [powers.get(j, 0.0) / math.fsum(powers.values()) for j in range(len(key))]
        all_weights.append(weights)
        all_outputs.append([dot(weights, column) for column in zip(*value, strict=True)])
    return all_outputs, all_weights


# softmax


def test_softmax_is_the_formula_over_the_last_axis():
    scores = real(BATCH, Q_SEQ, KV_SEQ)
    expected = [
        [[math.exp(s) / math.fsum(map(math.exp, row)) for s in row] for row in matrix] for matrix in scores.tolist()
    ]

    close(softmax(scores), expected, 1e-15)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_survives_the_largest_numbers_of_its_dtype(dtype):
    largest, third = torch.finfo(dtype).max, 1 / 3
    rows = [[largest, -largest, 0], [-largest] * 3, [largest] * 3, [1000, 1000, -1000]]
    expected = [[1, 0, 0], [third] * 3, [third] * 3, [0.5, 0.5, 0]]

    assert torch.equal(softmax(torch.tensor(rows, dtype=dtype)), torch.tensor(expected, dtype=dtype))


def test_softmax_ignores_one_number_added_to_a_row():
    # Sixteenths, shifted by a power of two: nothing rounds before the subtraction, so the bits agree.
    scores = torch.randint(-64, 64, (Q_SEQ, KV_SEQ), generator=torch.Generator().manual_seed(1)) / 16

    assert torch.equal(softmax(scores), softmax(scores + 4096))


def test_softmax_has_the_gradient_of_its_formula():
    scores, cotangent = real(KV_SEQ).requires_grad_(), real(KV_SEQ, seed=1)
    weights = softmax(scores)
    (gradient,) = torch.autograd.grad(weights, scores, cotangent)

    close(gradient, weights.detach() * (cotangent - cotangent @ weights.detach()))


# scaled dot-product attention


def test_the_example_of_walkthrough():
    query = torch.tensor([[0.3, 0.1], [0.2, 0.2], [-1.1, -0.2]], dtype=torch.float64)
    key = torch.tensor([[2.2, -0.6], [0.5, 0.3], [0.5, 0.8]], dtype=torch.float64)
    value = torch.tensor([[1.1, -1.7], [-1.0, 1.0], [1.3, 0.8]], dtype=torch.float64)
    output, weights = scaled_dot_product_attention(query, key, value)

    close(weights, [[0.3980, 0.2957, 0.3063], [0.3507, 0.3132, 0.3361], [0.1355, 0.4475, 0.4170]], 5e-5)
    close(output, [[0.5403, -0.1357], [0.5095, -0.0141], [0.2436, 0.5508]], 5e-5)
    by_hand = attention_in_plain_python(query.tolist(), key.tolist(), value.tolist())
    close(output, by_hand[0], 1e-15)
    close(weights, by_hand[1], 1e-15)


def test_the_example_of_primer_with_its_true_scores():
    query = torch.tensor([[[1, 0, 1, 2], [0, 2, 1, 0]]], dtype=torch.float64)
    key = torch.tensor([[[2, 1, 0, 1], [1, 0, 2, 1], [0, 1, 1, 2]]], dtype=torch.float64)
    value = torch.tensor([[[1, 0, 2, 1], [2, 1, 0, 1], [1, 2, 1, 0]]], dtype=torch.float64)
    output, weights = scaled_dot_product_attention(query, key, value)

    assert attention_scores(query, key).tolist() == [[[4, 5, 5], [2, 2, 3]]]
    assert scaled_scores(query, key).tolist() == [[[2, 2.5, 2.5], [1, 1, 1.5]]]
    close(weights, [[[0.2327, 0.3837, 0.3837], [0.2741, 0.2741, 0.4519]]], 5e-5)
    close(output, [[[1.3837, 1.1510, 0.8490, 0.6163], [1.2741, 1.1778, 1.0000, 0.5481]]], 5e-5)


def some(*shape: int, seed: int) -> Tensor:
    """A boolean mask, two thirds of it True."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 2 / 3


MASKS = {
    "no mask": None,
    "causal": causal_mask(Q_SEQ, KV_SEQ),
    "one per sample": some(BATCH, 1, 1, KV_SEQ, seed=2),
    "one per head": some(HEADS, Q_SEQ, KV_SEQ, seed=3),
    "one per score": some(BATCH, HEADS, Q_SEQ, KV_SEQ, seed=4),
    "one per query": torch.ones(Q_SEQ, 1, dtype=torch.bool),
    "a single number": torch.tensor(True),
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_agrees_with_torch_and_with_plain_python(name):
    mask = MASKS[name]
    query, key = real(BATCH, HEADS, Q_SEQ, D_K), real(BATCH, HEADS, KV_SEQ, D_K, seed=1)
    value = real(BATCH, HEADS, KV_SEQ, D_V, seed=2)
    output, weights = scaled_dot_product_attention(query, key, value, mask)

    torch_mask = None if mask is None else mask.expand(BATCH, HEADS, Q_SEQ, KV_SEQ)
    close(output, F.scaled_dot_product_attention(query, key, value, torch_mask))
    for b, h in itertools.product(range(BATCH), range(HEADS)):
        sees = None if torch_mask is None else torch_mask[b, h].tolist()
        by_hand = attention_in_plain_python(query[b, h].tolist(), key[b, h].tolist(), value[b, h].tolist(), sees)
        close(output[b, h], by_hand[0])
        close(weights[b, h], by_hand[1])


def test_attention_takes_matrices_without_leading_axes():
    query, key, value = real(Q_SEQ, D_K), real(KV_SEQ, D_K, seed=1), real(KV_SEQ, D_V, seed=2)
    output, weights = scaled_dot_product_attention(query, key, value)

    assert (output.shape, weights.shape) == ((Q_SEQ, D_V), (Q_SEQ, KV_SEQ))
    close(output, F.scaled_dot_product_attention(query, key, value))


@pytest.mark.parametrize(
    ("dtype", "level"),
    [(dtype, level) for dtype in FLOATS for level in (1.0, -1.2e4, 6e4, -6e4)]
    + [(dtype, level) for dtype in FLOATS if dtype != torch.float16 for level in (1e5, -1e5, 1e30, -1e30)]
    + [(torch.float16, -65472.0), (torch.float16, 65504.0)],
    ids=str,
)
def test_a_masked_key_has_exactly_no_weight_however_low_the_kept_scores(dtype, level):
    # The masked keys score highest, and the second query keeps one key, the third two.
    query = torch.ones(3, 1, dtype=dtype)
    key = torch.tensor([[abs(level)], [level], [level]], dtype=torch.float64).to(dtype)
    mask = torch.tensor([[True, True, True], [False, True, False], [False, True, True]])
    _, weights = scaled_dot_product_attention(query, key, key, mask)

    assert weights[1:].tolist() == [[0, 1, 0], [0, 0.5, 0.5]]


def test_what_a_masked_key_holds_is_of_no_account():
    query, key, value = real(Q_SEQ, D_K), real(KV_SEQ, D_K, seed=1), real(KV_SEQ, D_V, seed=2)
    mask = torch.arange(KV_SEQ) < 4
    expected = scaled_dot_product_attention(query, key, value, mask)
    key[4], key[5], key[6] = math.inf, math.nan, 1e300

    got = scaled_dot_product_attention(query, key, value, mask)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_without_a_key_is_uniform_and_has_finite_gradients(dtype):
    query, key, value = (
        real(*shape, seed=seed).to(dtype).requires_grad_()
        for seed, shape in enumerate(((Q_SEQ, D_K), (KV_SEQ, D_K), (KV_SEQ, D_V)))
    )
    mask = causal_mask(Q_SEQ, KV_SEQ)
    mask[2] = False
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert torch.equal(weights[2], torch.full((KV_SEQ,), 1 / KV_SEQ, dtype=dtype))

    by_row = torch.autograd.grad(output[2].sum(), (query, key, value), retain_graph=True)
    assert not by_row[0].any()  # the scores of that row are constants
    assert not by_row[1].any()
    torch.testing.assert_close(by_row[2], torch.full_like(value, 1 / KV_SEQ))
    everything = torch.autograd.grad((output.sin().sum(), weights.sin().sum()), (query, key, value))
    for gradient in everything:
        assert gradient.isfinite().all()
        assert gradient.any()


def test_self_attention_follows_a_permutation_until_positions_are_added():
    x, order = real(BATCH, Q_SEQ, D_K), torch.tensor([3, 0, 4, 1, 2])
    output, weights = scaled_dot_product_attention(x, x, x)

    permuted = x[:, order]
    close(scaled_dot_product_attention(permuted, permuted, permuted)[0], output[:, order])
    close(scaled_dot_product_attention(permuted, permuted, permuted)[1], weights[:, order][:, :, order])
    placed, moved = positional_encoding(x), positional_encoding(permuted)
    output = scaled_dot_product_attention(placed, placed, placed)[0]
    difference = scaled_dot_product_attention(moved, moved, moved)[0] - output[:, order]
    assert difference.abs().max() > 0.1


def test_the_scale_keeps_the_variance_of_the_scores():
    # 2^18 scores of a fixed seed; without the root the second variance would be 1/256, without the scale 256.
    query, key = real(512, 256), real(512, 256, seed=1)

    assert attention_scores(query, key).var().item() == pytest.approx(256, rel=0.02)
    assert scaled_scores(query, key).var().item() == pytest.approx(1, rel=0.02)


# masks


def test_a_causal_mask_shows_query_i_the_keys_up_to_i():
    assert causal_mask(3, 3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert causal_mask(2, 4).tolist() == [[True, False, False, False], [True, True, False, False]]
    assert causal_mask(4, 2).tolist() == [[True, False], [True, True], [True, True], [True, True]]
    assert causal_mask(1, 1).dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_a_padding_mask_hides_the_padding_for_all_heads_and_queries(dtype):
    ids = torch.tensor([[4, 9, 0], [7, 0, 0]], dtype=dtype)

    assert padding_mask(ids, 0).tolist() == [[[[True, True, False]]], [[[True, False, False]]]]
    assert padding_mask(ids, 9).tolist() == [[[[True, False, True]]], [[[True, True, True]]]]
    assert padding_mask(ids, -1).all()
    assert padding_mask(ids, 0).shape == (2, 1, 1, 3)


def test_masks_combine_to_what_both_keep():
    ids = torch.tensor([[4, 0, 5], [0, 7, 8]])
    both = padding_mask(ids, 0) & causal_mask(3, 3)

    assert both.shape == (2, 1, 3, 3)
    assert both[0, 0].tolist() == [[True, False, False], [True, False, False], [True, False, True]]
    assert both[1, 0].tolist() == [[False, False, False], [False, True, False], [False, True, True]]


# single head

X = torch.tensor([[1, 2], [0, 1], [3, 1]], dtype=torch.float64)
JAVA = {
    "w_q": torch.tensor([[1, 0], [0, 1]], dtype=torch.float64),
    "w_k": torch.tensor([[1, 1], [0, 1]], dtype=torch.float64),
    "w_v": torch.tensor([[1, 0], [1, 1]], dtype=torch.float64),
}


def test_the_example_of_java_without_a_mask():
    result = single_head_attention(X, **JAVA, causal=False)

    assert result.query.tolist() == [[1, 2], [0, 1], [3, 1]]
    assert result.key.tolist() == [[1, 3], [0, 1], [3, 4]]
    assert result.value.tolist() == [[3, 2], [1, 1], [4, 1]]
    assert result.scores.tolist() == [[7, 2, 11], [3, 1, 4], [6, 1, 13]]
    # The document's digits where they are right; its first column of row 1 and its row 2 are not.
    close(result.weights, [[0.0557, 0.0016, 0.9427], [0.3057, 0.0743, 0.6200], [0.0070, 0.0002, 0.9928]], 5e-5)
    close(result.output, [[3.94, 1.06], [3.4713, 1.3057], [3.99, 1.01]], 5e-3)
    by_hand = attention_in_plain_python(result.query.tolist(), result.key.tolist(), result.value.tolist())
    close(result.output, by_hand[0])
    close(result.weights, by_hand[1], 1e-15)


def test_the_example_of_java_as_its_code_computes_it():
    result = single_head_attention(X, **JAVA, causal=True)

    assert result.scores.tolist() == [[7, 2, 11], [3, 1, 4], [6, 1, 13]]
    sees = [[True, False, False], [True, True, False], [True, True, True]]
    by_hand = attention_in_plain_python(result.query.tolist(), result.key.tolist(), result.value.tolist(), sees)
    close(result.output, by_hand[0])
    close(result.weights, by_hand[1], 1e-15)
    assert result.output[0].tolist() == [3, 2]
    assert result.weights.triu(1).any().item() is False


def test_a_single_head_result_is_a_tuple_in_the_order_of_the_contract():
    assert SingleHeadResult._fields == ("output", "weights", "query", "key", "value", "scores")


@pytest.mark.parametrize("causal", [True, False])
def test_the_backward_pass_that_java_writes_by_hand_is_autograd(causal):
    x = real(Q_SEQ, D_K).requires_grad_()
    module = SingleHeadAttention(D_K, causal=causal, dtype=torch.float64)
    cotangent = real(Q_SEQ, D_K, seed=1)
    module(x).output.backward(cotangent)

    got = single_head_attention_gradient(x.detach(), cotangent, **module.state_dict(), causal=causal)
    for name, leaf in (("x", x), *module.named_parameters()):
        close(leaf.grad, getattr(got, name), 1e-13)


@pytest.mark.parametrize("causal", [True, False])
def test_the_steps_of_java_are_those_of_sgd(causal):
    x, cotangent = (real(Q_SEQ, D_K) / 4).requires_grad_(), real(Q_SEQ, D_K, seed=1)
    module = SingleHeadAttention(D_K, causal=causal, dtype=torch.float64)
    weights = {name: real(D_K, D_K, seed=2 + i) / 4 for i, name in enumerate(module.state_dict())}
    module.load_state_dict(weights)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.125)
    for _ in range(3):
        optimiser.zero_grad()
        x.grad = None
        module(x).output.backward(cotangent)
        optimiser.step()

    got = single_head_attention_step(x.detach(), cotangent, **weights, causal=causal, learning_rate=0.125, steps=3)
    close(got.x_gradient, x.grad, 1e-13)
    for name, parameter in module.named_parameters():
        close(getattr(got, name), parameter.detach(), 1e-13)


def test_a_learning_rate_of_0_moves_nothing():
    got = single_head_attention_step(X, X, **JAVA, causal=True, learning_rate=0, steps=2)
    for name, weight in JAVA.items():
        assert torch.equal(getattr(got, name), weight)


def test_a_single_head_is_causal_unless_told_otherwise():
    module = SingleHeadAttention(D_K, dtype=torch.float64)
    x = real(Q_SEQ, D_K)
    changed = x.clone()
    changed[-1] += 1

    assert torch.equal(module(x).output[:-1], module(changed).output[:-1])
    module.causal = False
    assert (module(x).output[:-1] - module(changed).output[:-1]).abs().min() > 0
