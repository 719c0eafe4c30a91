"""Each mistake in a layer gives what PyTorch code with it gives."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations, torch_implementations
from goldformer.spec.formulas.options import OPTIONS
from reference_functions import multi_head_attention, positional_encoding

COMPONENTS = {"feed_forward", "layer_norm", "encoder_layer", "decoder_layer", "encoder", "decoder"}
MISTAKES = [id_ for id_, m in implementations().items() if m.module == "layers"]


def test_every_mistake_of_the_catalogue_is_made(spec):
    # What goes wrong in a backward pass alone, what only tensors show, or what loses digits is made elsewhere.
    named = {m.id for m in spec.mistakes.values() if m.component in COMPONENTS and "-bwd" not in m.id}
    lossy = {id_ for id_, made in implementations().items() if made.loses_digits}
    assert named - torch_implementations().keys() - lossy == {*MISTAKES}


# The same in PyTorch, as it is written


def made(mistake):
    return implementations()[mistake].make()


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 64)


def arrays(thing):
    return {name: arrays(t) for name, t in thing.items()} if isinstance(thing, dict) else thing.numpy()


def part(params, name):
    return {key.removeprefix(f"{name}."): value for key, value in params.items() if key.startswith(f"{name}.")}


# No two alike, but that source and target are as long as each other where a mistake asks for it.
BATCH, SEQ, SOURCE_SEQ, D_MODEL, D_FF, HEADS = 3, 5, 4, 6, 7, 2
X, MEMORY = draw(1, BATCH, SEQ, D_MODEL), draw(2, BATCH, SOURCE_SEQ, D_MODEL)
CAUSAL = torch.ones(SEQ, SEQ).tril().bool()
SELF_MASK = CAUSAL & (torch.arange(SEQ) < torch.tensor([5, 3, 4])[:, None])[:, None, None, :]
MEMORY_MASK = (torch.arange(SOURCE_SEQ) < torch.tensor([2, 4, 3])[:, None])[:, None, None, :]
MASK = (torch.arange(SEQ) < torch.tensor([5, 2, 4])[:, None])[:, None, None, :]
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "feed_forward": {"w_1": (D_MODEL, D_FF), "b_1": (D_FF,), "w_2": (D_FF, D_MODEL), "b_2": (D_MODEL,)},
}
SHAPES |= {f"norm_{n}": {"gamma": (D_MODEL,), "beta": (D_MODEL,)} for n in (1, 2, 3)}
for attention in ("self_attention", "cross_attention"):
    SHAPES[attention] = {f"w_{role}": (D_MODEL, D_MODEL) for role in "qkvo"} | {"b_v": (D_MODEL,), "b_o": (D_MODEL,)}


def drawn(seed, *parts):
    """The parameters of a layer that has these parts."""
    names = [(name, own, shape) for name in parts for own, shape in SHAPES[name].items()]
    return {f"{name}.{own}": draw(seed + i, *shape) for i, (name, own, shape) in enumerate(names)}


ENCODER_LAYER = drawn(10, "self_attention", "norm_1", "feed_forward", "norm_2")
DECODER_LAYER = drawn(50, "self_attention", "norm_1", "cross_attention", "norm_2", "feed_forward", "norm_3")
FEED_FORWARD, NORM = part(ENCODER_LAYER, "feed_forward"), part(ENCODER_LAYER, "norm_1")
W_1, B_1, W_2, B_2 = (FEED_FORWARD[name] for name in ("w_1", "b_1", "w_2", "b_2"))
MEAN, GAMMA, BETA = X.mean(-1, keepdim=True), NORM["gamma"], NORM["beta"]


def windows(weight):
    """A convolution over tokens whose two taps are both the weight, with zeros before the first token."""
    rows = functional.pad(X.transpose(1, 2), (1, 0))
    return functional.conv1d(rows, torch.stack([weight.T, weight.T], dim=-1), B_1).transpose(1, 2)


WRITTEN_FEED_FORWARD = {
    "ffn-no-relu": (X @ W_1 + B_1) @ W_2 + B_2,
    "ffn-leaky-relu": functional.leaky_relu(X @ W_1 + B_1) @ W_2 + B_2,
    "ffn-output-relu": ((X @ W_1 + B_1).relu() @ W_2 + B_2).relu(),
    "ffn-bias-missing": (X @ W_1).relu() @ W_2,
    "ffn-bias-after-relu": ((X @ W_1).relu() + B_1) @ W_2 + B_2,
    "ffn-no-dff": (X @ W_1[:, :D_MODEL] + B_1[:D_MODEL]).relu() @ W_2[:D_MODEL] + B_2,
    "ffn-mixes-tokens": windows(W_1).relu() @ W_2 + B_2,
}
WRITTEN_NORM = {
    "ln-wrong-axis": functional.layer_norm(X, (SEQ, D_MODEL)) * GAMMA + BETA,
    "bn-for-ln": functional.batch_norm(X.transpose(1, 2), None, None, GAMMA, BETA, training=True).transpose(1, 2),
    "rms-for-ln": functional.rms_norm(X, (D_MODEL,), GAMMA, eps=1e-5) + BETA,
    "ln-unbiased": (X - MEAN) / (X.var(-1, keepdim=True) + 1e-5).sqrt() * GAMMA + BETA,
    "ln-eps-outside": (X - MEAN) / (X.std(-1, keepdim=True, correction=0) + 1e-5) * GAMMA + BETA,
    "ln-square": (X - MEAN) / (X.var(-1, keepdim=True, correction=0) + 1e-5) ** 2 * GAMMA + BETA,
    "ln-no-affine": functional.layer_norm(X, (D_MODEL,)),
    # In float64 all is right.
    "ln-naive-variance": functional.layer_norm(X, (D_MODEL,), GAMMA, BETA),
    "ln-one-plus-gamma": functional.layer_norm(X, (D_MODEL,), 1 + GAMMA, BETA),
}


@pytest.mark.parametrize("mistake", WRITTEN_FEED_FORWARD)
def test_a_network_is_that_of_code_with_the_mistake(mistake):
    output, _ = made(mistake).feed_forward(X.numpy(), params=arrays(FEED_FORWARD))
    np.testing.assert_allclose(output, WRITTEN_FEED_FORWARD[mistake], rtol=0, atol=1e-13)


@pytest.mark.parametrize("mistake", WRITTEN_NORM)
def test_a_norm_is_that_of_code_with_the_mistake(mistake):
    output = made(mistake).layer_norm(X.numpy(), params=arrays(NORM))
    np.testing.assert_allclose(output, WRITTEN_NORM[mistake], rtol=1e-12, atol=1e-13)


def test_a_hidden_layer_as_wide_as_the_model_shows_no_other_channels():
    _, hidden = made("ffn-no-dff").feed_forward(X.numpy(), params=arrays(FEED_FORWARD))
    assert hidden.shape == (BATCH, SEQ, D_MODEL)


def test_a_difference_of_two_squares_has_no_digits_left():
    plain = {"gamma": np.ones(2, "float32"), "beta": np.zeros(2, "float32")}
    (row,) = made("ln-naive-variance").layer_norm(np.array([[4096, 4097]], "float32"), params=plain)
    np.testing.assert_allclose(row, [-158.11388, 158.11388], rtol=1e-6)


def test_an_unbiased_variance_of_one_channel_is_nan():
    one = {"gamma": np.ones(1), "beta": np.zeros(1)}
    assert np.isnan(made("ln-unbiased").layer_norm(np.ones((2, 1)), params=one)).all()


class Layer:
    """The parts of a layer as functions: LN_1, attention and so on."""

    def __init__(self, params):
        self.ln_1, self.ln_2, self.ln_3 = (partial(self.norm, part(params, f"norm_{n}")) for n in (1, 2, 3))
        self.self_attend, self.cross_attend = (
            partial(self.attend, part(params, f"{which}_attention")) for which in ("self", "cross")
        )
        self.w_1, self.b_1, self.w_2, self.b_2 = part(params, "feed_forward").values()

    def norm(self, params, x):
        return functional.layer_norm(x, (D_MODEL,), params["gamma"], params["beta"])

    def attend(self, params, x, memory, mask):
        return multi_head_attention(x, memory, memory, mask, num_heads=HEADS, **params)[0]

    def ffn(self, x):
        return (x @ self.w_1 + self.b_1).relu() @ self.w_2 + self.b_2


def encoder_layer(mistake, params, x=X):
    p = Layer(params)
    attended = p.self_attend(x, x, MASK & CAUSAL if mistake == "causal-in-encoder" else MASK)
    if mistake == "residual-missing":
        a = p.ln_1(attended)
        return p.ln_2(p.ffn(a))
    if mistake == "residual-normed":
        y = p.ln_1(x)
        a = y + p.self_attend(y, y, MASK)
        return p.ln_2(a) + p.ffn(p.ln_2(a))
    if mistake == "norm-before-add":
        a = x + p.ln_1(attended)
        return a + p.ln_2(p.ffn(a))
    h = x + attended
    a = p.ln_1(h)
    y = {
        "residual-wrong-x": lambda: p.ln_2(x + p.ffn(a)),
        "residual-unnormed": lambda: p.ln_2(h + p.ffn(a)),
        "norm-missing": lambda: h + p.ffn(h),
        "wrong-ln-reused": lambda: p.ln_1(a + p.ffn(a)),
        "ffn-missing": lambda: a,
    }.get(mistake, lambda: p.ln_2(a + p.ffn(a)))()
    return positional_encoding(y) if mistake == "pe-every-layer" else y


def decoder_layer(mistake, params, x=X, memory=MEMORY, memory_mask=MEMORY_MASK):
    p = Layer(params)
    h = x + p.self_attend(x, x, SELF_MASK)
    a = p.ln_1(h)
    if mistake == "cross-missing":
        return p.ln_3(a + p.ffn(a))
    if mistake == "cross-before-self":
        c = p.ln_2(x + p.cross_attend(x, memory, memory_mask))
        a = p.ln_1(c + p.self_attend(c, c, SELF_MASK))
        return p.ln_3(a + p.ffn(a))
    causal = torch.ones(SEQ, memory.shape[1]).tril().bool()
    looked = {
        "cross-q-source": lambda: p.cross_attend(a, a, SELF_MASK),
        "cross-self-weights": lambda: p.self_attend(a, memory, memory_mask),
        "cross-mask-absent": lambda: p.cross_attend(a, memory, None),
        "cross-uses-tgt-mask": lambda: p.cross_attend(a, memory, SELF_MASK),
        "causal-in-cross": lambda: p.cross_attend(a, memory, memory_mask & causal),
    }.get(mistake, lambda: p.cross_attend(a, memory, memory_mask))()
    if mistake == "residual-missing":
        a = p.ln_1(p.self_attend(x, x, SELF_MASK))
        return p.ln_3(p.ffn(p.ln_2(p.cross_attend(a, memory, memory_mask))))
    if mistake == "norm-missing":
        g = h + p.cross_attend(h, memory, memory_mask)
        return g + p.ffn(g)
    c = p.ln_1(a + looked) if mistake == "wrong-ln-reused" else p.ln_2(a + looked)
    y = {
        "residual-wrong-x": lambda: p.ln_3(x + p.ffn(p.ln_2(x + looked))),
        "residual-unnormed": lambda: p.ln_3(h + looked + p.ffn(p.ln_2(h + looked))),
        "ffn-missing": lambda: c,
        "wrong-ln-reused": lambda: p.ln_2(c + p.ffn(c)),
    }.get(mistake, lambda: p.ln_3(c + p.ffn(c)))()
    return positional_encoding(y) if mistake == "pe-every-layer" else y


IN_ENCODER_LAYER = (
    "residual-missing", "residual-wrong-x", "residual-normed", "residual-unnormed", "norm-before-add", "norm-missing",
    "wrong-ln-reused", "ffn-missing", "causal-in-encoder", "pe-every-layer",
)  # fmt: skip
IN_DECODER_LAYER = (
    "residual-missing", "residual-wrong-x", "residual-unnormed", "norm-missing", "wrong-ln-reused", "ffn-missing",
    "cross-missing", "cross-before-self", "cross-q-source", "cross-self-weights", "cross-mask-absent",
    "causal-in-cross", "pe-every-layer",
)  # fmt: skip


@pytest.mark.parametrize("mistake", IN_ENCODER_LAYER)
def test_an_encoder_layer_is_that_of_code_with_the_mistake(mistake):
    given = made(mistake).encoder_layer(X.numpy(), MASK.numpy(), num_heads=HEADS, params=arrays(ENCODER_LAYER))
    np.testing.assert_allclose(given["output"], encoder_layer(mistake, ENCODER_LAYER), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mistake", IN_DECODER_LAYER)
def test_a_decoder_layer_is_that_of_code_with_the_mistake(mistake):
    masks = {"self_mask": SELF_MASK.numpy(), "memory_mask": MEMORY_MASK.numpy()}
    params = arrays(DECODER_LAYER)
    given = made(mistake).decoder_layer(X.numpy(), MEMORY.numpy(), **masks, num_heads=HEADS, params=params)
    np.testing.assert_allclose(given["output"], decoder_layer(mistake, DECODER_LAYER), rtol=0, atol=1e-12)


def pre_norm(*mistakes):
    layers = (implementations()[mistake].steps for mistake in mistakes)
    book = build_textbook(OPTIONS["norm_placement", "pre"], *layers)
    masks = {"self_mask": SELF_MASK.numpy(), "memory_mask": MEMORY_MASK.numpy()}
    common = {"num_heads": HEADS}
    encoded = book.encoder_layer(X.numpy(), MASK.numpy(), **common, params=arrays(ENCODER_LAYER))
    decoded = book.decoder_layer(X.numpy(), MEMORY.numpy(), **masks, **common, params=arrays(DECODER_LAYER))
    return encoded, decoded


def test_where_the_norm_stands_before_a_residual_that_is_not_normalised_is_right():
    for got, right in zip(pre_norm("residual-unnormed"), pre_norm(), strict=True):
        assert all(np.array_equal(got[name], right[name]) for name in right)


def test_without_norms_it_does_not_matter_where_they_would_stand():
    for got, written in zip(pre_norm("norm-missing"), (encoder_layer, decoder_layer), strict=True):
        params = ENCODER_LAYER if written is encoder_layer else DECODER_LAYER
        np.testing.assert_allclose(got["output"], written("norm-missing", params), rtol=0, atol=1e-12)


def test_where_the_norm_stands_before_a_layer_without_its_network_ends_with_the_attention_too():
    (encoded, decoded), (right, right_too) = pre_norm("ffn-missing"), pre_norm()
    assert np.array_equal(encoded["output"], right["attended"])
    assert np.array_equal(decoded["output"], right_too["crossed"])


def test_the_mask_of_the_target_fits_a_source_of_its_length_alone():
    layer = made("cross-uses-tgt-mask").decoder_layer
    masks = {"self_mask": SELF_MASK.numpy(), "memory_mask": MASK.numpy()}
    memory = draw(3, BATCH, SEQ, D_MODEL)
    given = layer(X.numpy(), memory.numpy(), **masks, num_heads=HEADS, params=arrays(DECODER_LAYER))
    want = decoder_layer("cross-uses-tgt-mask", DECODER_LAYER, memory=memory)
    np.testing.assert_allclose(given["output"], want, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="does not broadcast"):
        layer(X.numpy(), MEMORY.numpy(), **masks, num_heads=HEADS, params=arrays(DECODER_LAYER))


@pytest.mark.parametrize("mistake", ["causal-in-encoder", "causal-in-cross"])
def test_a_causal_mask_comes_where_there_was_none(mistake):
    causal = np.tri(SEQ, SOURCE_SEQ if mistake == "causal-in-cross" else SEQ, dtype=bool)
    if mistake == "causal-in-encoder":
        call = partial(made(mistake).encoder_layer, X.numpy(), num_heads=HEADS, params=arrays(ENCODER_LAYER))
        with_mask, without = call(causal), call()
    else:
        call = partial(made(mistake).decoder_layer, X.numpy(), MEMORY.numpy(), num_heads=HEADS)
        with_mask, without = (call(memory_mask=m, params=arrays(DECODER_LAYER)) for m in (causal, None))
    assert np.array_equal(with_mask["output"], without["output"])


STACK = {
    f"encoder.{i}.{name}": draw(200 + 40 * i + j, *p.shape)
    for i in (0, 1, 2)
    for j, (name, p) in enumerate(ENCODER_LAYER.items())
}
DECODER_STACK = {
    f"decoder.{i}.{name}": draw(400 + 40 * i + j, *p.shape)
    for i in (0, 1)
    for j, (name, p) in enumerate(DECODER_LAYER.items())
}


@pytest.mark.parametrize("mistake", ["layers-shared", "layer-skipped", "final-norm-extra"])
def test_a_stack_is_that_of_code_with_the_mistake(mistake):
    shared, fewer = mistake == "layers-shared", int(mistake == "layer-skipped")
    x, y = X, X
    for i in range(3 - fewer):
        x = encoder_layer("", part(STACK, f"encoder.{0 if shared else i}"), x)
    for i in range(2 - fewer):
        y = decoder_layer("", part(DECODER_STACK, f"decoder.{0 if shared else i}"), y)
    if mistake == "final-norm-extra":
        x = Layer(part(STACK, "encoder.2")).ln_2(x)
        y = Layer(part(DECODER_STACK, "decoder.1")).ln_3(y)
    book, masks = made(mistake), {"self_mask": SELF_MASK.numpy(), "memory_mask": MEMORY_MASK.numpy()}
    encoded = book.encoder(X.numpy(), MASK.numpy(), num_heads=HEADS, num_layers=3, params=arrays(STACK))
    params = arrays(DECODER_STACK)
    decoded = book.decoder(X.numpy(), MEMORY.numpy(), **masks, num_heads=HEADS, num_layers=2, params=params)
    np.testing.assert_allclose(encoded["output"], x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(decoded["output"], y, rtol=0, atol=1e-11)


FINAL_NORM = ("final-norm-missing", "final-norm-each-layer", "final-norm-encoder-only", "final-norm-decoder-only")


@pytest.mark.parametrize("mistake", FINAL_NORM)
def test_a_stack_with_a_norm_at_its_end_is_that_of_code_with_the_mistake(mistake):
    final = {"gamma": draw(601, D_MODEL), "beta": draw(602, D_MODEL)}
    norm = partial(Layer(ENCODER_LAYER).norm, final)
    x, y = X, X
    for i in range(3):
        x = encoder_layer("", part(STACK, f"encoder.{i}"), x)
        x = norm(x) if mistake == "final-norm-each-layer" else x
    for i in range(2):
        y = decoder_layer("", part(DECODER_STACK, f"decoder.{i}"), y)
        y = norm(y) if mistake == "final-norm-each-layer" else y
    x = norm(x) if mistake == "final-norm-encoder-only" else x
    y = norm(y) if mistake == "final-norm-decoder-only" else y
    book, named = made(mistake), {f"norm.{name}": p for name, p in final.items()}
    masks = {"self_mask": SELF_MASK.numpy(), "memory_mask": MEMORY_MASK.numpy()}
    encoded = book.encoder(X.numpy(), MASK.numpy(), num_heads=HEADS, num_layers=3, params=arrays(STACK | named))
    params = arrays(DECODER_STACK | named)
    decoded = book.decoder(X.numpy(), MEMORY.numpy(), **masks, num_heads=HEADS, num_layers=2, params=params)
    np.testing.assert_allclose(encoded["output"], x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(decoded["output"], y, rtol=0, atol=1e-11)


def test_a_stack_of_one_layer_without_its_last_gives_what_it_reads():
    params = {name: p for name, p in STACK.items() if name.startswith("encoder.0.")}
    given = made("layer-skipped").encoder(X.numpy(), num_heads=HEADS, num_layers=1, params=arrays(params))
    assert np.array_equal(given["output"], X)


EVERYTHING = {"dropout_rate": 1, "training": True, "seed": 1}


def test_an_output_of_the_network_that_is_dropped_loses_its_last_bias():
    params = {"w_1": draw(1, D_MODEL, 7), "b_1": draw(2, 7), "w_2": draw(3, 7, D_MODEL), "b_2": draw(4, D_MODEL)}
    right, wrong = (
        book.feed_forward(X.numpy(), params=arrays(params), **EVERYTHING)[0]
        for book in (build_textbook(), made("ffn-dropout-output"))
    )
    np.testing.assert_array_equal(right, np.broadcast_to(params["b_2"].numpy(), right.shape))
    assert not wrong.any()


def test_a_residual_that_is_dropped_leaves_nothing_to_normalise():
    params = {name: draw(10 + i, *p.shape) for i, (name, p) in enumerate(ENCODER_LAYER.items())}
    right, wrong = (
        book.encoder_layer(X.numpy(), num_heads=HEADS, params=arrays(params), **EVERYTHING)["output"]
        for book in (build_textbook(), made("residual-dropped"))
    )
    layer = Layer(params)
    np.testing.assert_allclose(right, layer.ln_2(layer.ln_1(X)), rtol=0, atol=1e-11)
    # The norm of zeros is its beta.
    np.testing.assert_array_equal(wrong, np.broadcast_to(params["norm_2.beta"].numpy(), wrong.shape))


def test_every_mistake_is_written_here():
    written = {*WRITTEN_FEED_FORWARD, *WRITTEN_NORM, *IN_ENCODER_LAYER, *IN_DECODER_LAYER}
    in_stacks = {"layers-shared", "layer-skipped", "final-norm-extra"}
    assert {*MISTAKES} == written | in_stacks | {*FINAL_NORM} | {
        "cross-uses-tgt-mask",
        "ffn-dropout-output",
        "residual-dropped",
    }
