"""The textbook's backward passes against autograd through the reference, and the mistakes that they make possible."""

from typing import Any

import numpy as np
import pytest
import torch

import reference_functions
from goldformer.adapters.builtin import reference
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.invoke import name_outputs
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.spec.formulas.options import OPTIONS

STEP = "single_head_attention_step"

textbook = build_textbook()
SCALED = OPTIONS["embedding_scale", "sqrt_d_model"]


def draw(seed, *shape):
    return np.random.default_rng(seed).integers(-64, 65, shape) / 32


def some(seed, *shape):
    """A mask with an empty row, the first."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    mask[..., 0, :] = False
    return mask


QUERIES = {"query": draw(1, 3, 2, 4, 5), "key": draw(2, 3, 2, 7, 5), "value": draw(3, 3, 2, 7, 6)}
SQUARE = {"params": {f"w_{role}": draw(i, 5, 5) for i, role in enumerate("qkv", 10)}}
FEED = {"w_1": draw(20, 4, 7), "b_1": draw(21, 7), "w_2": draw(22, 7, 4), "b_2": draw(23, 4)}
BARE = {name: array for name, array in FEED.items() if name.startswith("w")}
GATED = {"w_gate": draw(34, 4, 7), "b_gate": draw(35, 7), "w_up": draw(36, 4, 7), "b_up": draw(37, 7)}
GATED |= {"w_down": draw(38, 7, 4), "b_down": draw(39, 4)}
NORM = {"gamma": draw(24, 4), "beta": draw(25, 4)}


def attention(seed, query, key, value, columns, width):
    """Projections of a query, key and value of these widths, to so many columns and back."""
    shapes = {"q": (query, columns), "k": (key, columns), "v": (value, columns), "o": (columns, width)}
    weights = {f"w_{role}": draw(seed, *shape) for seed, (role, shape) in enumerate(shapes.items(), seed)}
    return weights | {f"b_{role}": draw(seed, shape[1]) for seed, (role, shape) in enumerate(shapes.items(), seed + 4)}


def under(prefix, params):
    return {f"{prefix}.{name}": array for name, array in params.items()}


def scaled(params, index):
    """The parameters of a layer of a stack: halves, and thirds in the next layer."""
    return {name: array / (2 + index) for name, array in params.items()}


HEADS = {
    "query": draw(60, 3, 4, 5), "key": draw(61, 3, 7, 3), "value": draw(62, 3, 7, 2), "mask": some(63, 3, 1, 4, 7),
    "num_heads": 2, "params": attention(64, 5, 3, 2, 6, 5),
}  # fmt: skip
NO_BIASES = HEADS | {"params": {n: a for n, a in HEADS["params"].items() if n.startswith("w")}}
FUSED = {"w_qkv": draw(72, 5, 18), "b_qkv": draw(73, 18), "w_o": draw(74, 6, 6), "b_o": draw(75, 6)}
ENCODER = {
    **under("self_attention", attention(80, 4, 4, 4, 6, 4)), **under("norm_1", NORM), **under("feed_forward", FEED),
    **under("norm_2", {"gamma": draw(88, 4), "beta": draw(89, 4)}),
}  # fmt: skip
DECODER = {
    **ENCODER, **under("cross_attention", attention(90, 4, 4, 4, 6, 4)),
    **under("norm_3", {"gamma": draw(98, 4), "beta": draw(99, 4)}),
}  # fmt: skip
VOCAB = {"w_vocab": draw(100, 4, 7), "b_vocab": draw(101, 7)}
ENCODERS, DECODERS = (
    {name: array for i in (0, 1) for name, array in under(f"{stack}.{i}", scaled(layer, i)).items()}
    for stack, layer in (("encoder", ENCODER), ("decoder", DECODER))
)
MODEL: dict[str, Any] = {
    "source": np.array([[3, 1, 3, 0], [4, 2, 5, 1]]), "target": np.array([[1, 0, 3], [5, 5, 0]]), "num_heads": 2,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "pad_id": 0,
    "params": {"table": draw(104, 7, 4), **VOCAB, **ENCODERS, **DECODERS},
}  # fmt: skip
FINAL = {"gamma": draw(105, 4), "beta": draw(106, 4)}
# The table is tied, and positions are learned: more of them than there are tokens.
TIED = {
    "table": draw(104, 7, 4), "position_table": draw(107, 5, 4), **ENCODERS, **DECODERS, **under("encoder_norm", FINAL),
    **under("decoder_norm", {"gamma": draw(108, 4), "beta": draw(109, 4)}),
}  # fmt: skip
GROUPED = {"query": draw(110, 2, 4, 3, 5), "key": draw(111, 2, 2, 4, 5), "value": draw(112, 2, 2, 4, 6)}
TARGET = np.random.default_rng(102).dirichlet(np.ones(5), (2, 3))
TARGETS = np.array([[3, 0, 1], [2, 2, 1]])

CALLS = {
    "softmax": ("softmax", {"scores": draw(5, 2, 3, 4)}),
    "attention": ("scaled_dot_product_attention", QUERIES),
    "attention, a mask": ("scaled_dot_product_attention", QUERIES | {"mask": some(6, 3, 1, 4, 7)}),
    "grouped queries": ("grouped_query_attention", GROUPED),
    "grouped queries, a mask": ("grouped_query_attention", GROUPED | {"mask": some(6, 2, 1, 3, 4)}),
    "one head of keys": ("grouped_query_attention", GROUPED | {n: GROUPED[n][:, :1] for n in ("key", "value")}),
    "single head": ("single_head_attention", {"x": draw(7, 6, 5), "causal": False} | SQUARE),
    "single head, causal": ("single_head_attention", {"x": draw(7, 6, 5), "causal": True} | SQUARE),
    "embedding": ("token_embedding", {"ids": np.array([[0, 4, 4], [1, 4, 0]]), "params": {"table": draw(8, 6, 3)}}),
    "feed-forward": ("feed_forward", {"x": draw(9, 2, 3, 4), "params": FEED}),
    "feed-forward, no biases": ("feed_forward", {"x": draw(9, 2, 3, 4), "params": BARE}),
    "layer norm": ("layer_norm", {"x": draw(30, 2, 3, 5), "params": {"gamma": draw(31, 5), "beta": draw(32, 5)}}),
    "layer norm, one row": ("layer_norm", {"x": draw(30, 5), "params": {"gamma": draw(31, 5), "beta": draw(32, 5)}}),
    "rms norm": ("rms_norm", {"x": draw(30, 2, 3, 5), "params": {"gamma": draw(31, 5)}}),
    "rms norm, one row": ("rms_norm", {"x": draw(30, 5), "params": {"gamma": draw(31, 5)}}),
    "gated": ("gated_feed_forward", {"x": draw(33, 2, 3, 4), "params": GATED}),
    "gated, no biases": (
        "gated_feed_forward", {"x": draw(33, 2, 3, 4), "params": {n: w for n, w in GATED.items() if n[0] == "w"}},
    ),
    "heads": ("multi_head_attention", HEADS),
    "heads, no biases": ("multi_head_attention", NO_BIASES),
    "heads, no mask": ("multi_head_attention", {n: a for n, a in HEADS.items() if n != "mask"}),
    "fused heads": (
        "fused_multi_head_attention",
        {"x": draw(76, 3, 4, 5), "mask": some(77, 3, 1, 4, 4), "num_heads": 2, "params": FUSED},
    ),
    "encoder layer": (
        "encoder_layer", {"x": draw(78, 2, 3, 4), "mask": some(79, 2, 1, 3, 3), "num_heads": 2, "params": ENCODER},
    ),
    "decoder layer": (
        "decoder_layer",
        {
            "x": draw(78, 2, 3, 4), "memory": draw(79, 2, 5, 4), "self_mask": some(80, 2, 1, 3, 3),
            "memory_mask": some(81, 2, 1, 3, 5), "num_heads": 2, "params": DECODER,
        },
    ),
    "decoder layer, no masks": (
        "decoder_layer", {"x": draw(78, 2, 3, 4), "memory": draw(79, 2, 5, 4), "num_heads": 2, "params": DECODER},
    ),
    "encoder": (
        "encoder",
        {"x": draw(78, 2, 3, 4), "mask": some(79, 2, 1, 3, 3), "num_heads": 2, "num_layers": 2, "params": ENCODERS},
    ),
    "decoder": (
        "decoder",
        {
            "x": draw(78, 2, 3, 4), "memory": draw(79, 2, 5, 4), "self_mask": some(80, 2, 1, 3, 3),
            "memory_mask": some(81, 2, 1, 3, 5), "num_heads": 2, "num_layers": 2, "params": DECODERS,
        },
    ),
    "encoder, final norm": (
        "encoder",
        {"x": draw(78, 2, 3, 4), "num_heads": 2, "num_layers": 2, "params": ENCODERS | under("norm", FINAL)},
    ),
    "decoder, final norm": (
        "decoder",
        {
            "x": draw(78, 2, 3, 4), "memory": draw(79, 2, 5, 4), "num_heads": 2, "num_layers": 2,
            "params": DECODERS | under("norm", FINAL),
        },
    ),
    "model": ("transformer", MODEL),
    "model, tied, final norms, learned positions": ("transformer", MODEL | {"params": TIED}),
    "model, tied with a bias": (
        "transformer", MODEL | {"params": {n: a for n, a in MODEL["params"].items() if n != "w_vocab"}},
    ),
    "output layer": ("output_probabilities", {"x": draw(82, 2, 3, 4), "params": VOCAB}),
    "divergence": ("kl_divergence", {"target": TARGET, "logits": draw(103, 2, 3, 5)}),
    "loss": ("cross_entropy", {"logits": draw(33, 2, 3, 5), "targets": TARGETS, "pad_id": 2}),
}  # fmt: skip


def tracked(thing):
    """Tensors that autograd follows, of the same form."""
    if isinstance(thing, dict):
        return {name: tracked(value) for name, value in thing.items()}
    return torch.tensor(thing, requires_grad=thing.dtype == float) if isinstance(thing, np.ndarray) else thing


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_backward_passes_are_those_of_autograd(call, spec):
    component, arguments = call
    given = tracked(arguments)
    contract = spec.contracts[component]
    output = name_outputs(getattr(reference, component)(**given), contract)[contract.first_output]
    cotangent = draw(40, *output.shape) + 0.25
    output.backward(torch.tensor(cotangent))
    leaves = {**given, **given.get("params", {})}
    expected = {n: t.grad for n, t in leaves.items() if isinstance(t, torch.Tensor) and t.requires_grad}

    got = getattr(textbook, f"{component}_gradient")(**arguments, cotangent=cotangent)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1e-12, err_msg=name)


PRE_NORM = {
    "encoder layer": (reference_functions.encoder_layer, CALLS["encoder layer"][1]),
    "decoder": (reference_functions.decoder, CALLS["decoder"][1]),
}


@pytest.mark.parametrize("call", PRE_NORM.values(), ids=PRE_NORM)
def test_backward_passes_of_the_option_pre_are_those_of_autograd(call):
    function, arguments = call
    given = tracked(arguments)
    output = function(**given, norm_first=True).output
    cotangent = draw(41, *output.shape)
    output.backward(torch.tensor(cotangent))
    leaves = {**given, **given["params"]}
    expected = {n: t.grad for n, t in leaves.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    book = build_textbook(OPTIONS["norm_placement", "pre"])
    got = getattr(book, f"{function.__name__}_gradient")(**arguments, cotangent=cotangent)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1e-11, err_msg=name)


def test_under_the_option_fixed_the_row_of_the_padding_has_no_gradient():
    book = build_textbook(OPTIONS["pad_row", "fixed"])
    ids, table = np.array([[0, 4, 4], [1, 4, 0]]), draw(8, 6, 3)
    given = {"ids": ids, "params": {"table": table}, "cotangent": draw(9, 2, 3, 3)}
    leaf = torch.tensor(table, requires_grad=True)
    rows = torch.nn.functional.embedding(torch.tensor(ids), leaf, padding_idx=4)
    rows.backward(torch.tensor(given["cotangent"]))
    np.testing.assert_array_equal(book.token_embedding_gradient(**given, pad_id=4)["table"], leaf.grad)
    assert np.all(leaf.grad[4].numpy() == 0)

    # Only the embeddings pass none on: a tied table has one from the logits.
    call = MODEL | {"params": TIED}
    given = tracked(call)
    logits = reference_functions.transformer(**given, fixed_pad_row=True).logits
    cotangent = draw(41, *logits.shape)
    logits.backward(torch.tensor(cotangent))
    got = book.transformer_gradient(**call, cotangent=cotangent)["table"]
    np.testing.assert_allclose(got, given["params"]["table"].grad, rtol=0, atol=1e-12)
    assert np.any(got[0] != 0)


def test_a_row_that_is_read_with_a_factor_has_it_in_its_gradient():
    given = {"ids": np.array([[0, 4, 4]]), "params": {"table": draw(8, 6, 4)}, "cotangent": draw(9, 1, 3, 4)}
    plain, scaled_up = (made.token_embedding_gradient(**given)["table"] for made in (textbook, build_textbook(SCALED)))
    np.testing.assert_array_equal(scaled_up, 2 * plain)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gradients_have_the_dtype_of_the_inputs(call, dtype):
    component, arguments = call

    def narrowed(thing):
        if isinstance(thing, dict):
            return {name: narrowed(value) for name, value in thing.items()}
        return thing.astype(dtype) if isinstance(thing, np.ndarray) and thing.dtype == float else thing

    given = narrowed(arguments)
    returned = getattr(textbook, component)(**given)
    first = next(iter(returned.values())) if isinstance(returned, dict) else returned
    first = first[0] if isinstance(first, tuple) else first
    got = getattr(textbook, f"{component}_gradient")(**given, cotangent=np.ones_like(first))
    assert {gradient.dtype for gradient in got.values()} == {np.dtype(dtype)}


@pytest.mark.parametrize("causal", [False, True])
def test_three_steps_are_those_of_torch(causal):
    x, output_gradient = draw(50, 6, 5) / 2, draw(51, 6, 5) / 2
    leaves = {name: torch.tensor(array / 2, requires_grad=True) for name, array in SQUARE["params"].items()}
    tracked_x = torch.tensor(x, requires_grad=True)
    optimiser = torch.optim.SGD(leaves.values(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        tracked_x.grad = None
        output = reference.single_head_attention(tracked_x, causal=causal, params=leaves)["output"]
        output.backward(torch.tensor(output_gradient))
        optimiser.step()

    given = {"causal": causal, "learning_rate": 0.1, "steps": 3}
    params = {name: array / 2 for name, array in SQUARE["params"].items()}
    got = textbook.single_head_attention_step(x, output_gradient, **given, params=params)
    for name, expected in {"x_gradient": tracked_x.grad, **leaves}.items():
        np.testing.assert_allclose(got[name], expected.detach(), rtol=0, atol=1e-13, err_msg=name)


STEP_ARGUMENTS = {
    "x": draw(50, 6, 5), "output_gradient": draw(51, 6, 5), "causal": True, "learning_rate": 0.1, "steps": 1, **SQUARE,
}  # fmt: skip
REFUSED = [
    ({"steps": 0}, "steps: 0, but training takes at least one step"),
    ({"learning_rate": -0.1}, "learning_rate: -0.1, but a step goes against the gradient, by 0 or more"),
    ({"learning_rate": float("nan")}, "learning_rate: nan, but a step"),
    ({"output_gradient": draw(51, 1, 5)}, r"output_gradient: shape \(1, 5\) is not \(seq, d_model\): seq is 6 in x"),
    ({"params": {**SQUARE["params"], "w_k": draw(1, 5, 4)}}, "w_k: shape .* d_model is 5 in x"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_refusals_name_the_argument(changed, message):
    with pytest.raises(ValueError, match=message):
        textbook.single_head_attention_step(**STEP_ARGUMENTS | changed)


def test_steps_of_an_adapter_that_returns_the_input_gradient_alone_are_not_compared(spec):
    class InputGradientAlone:
        ARRAYS = "numpy"

        def single_head_attention_step(self, **given):
            return textbook.single_head_attention_step(**given)["x_gradient"]

    bench = Bench(spec, Adapter.from_object(InputGradientAlone(), "alone", spec), "float64", "cpu")
    verdict = check_property(spec.properties["shas-one-by-one"], STEP, bench)
    assert (verdict.status, verdict.message) == (Status.SKIPPED, "alone does not return w_q, w_k, w_v")
