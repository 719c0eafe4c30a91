"""PyTorch's layers, stacks and losses, each variant against the textbook; where masks go, and what is declined."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from goldformer.adapters.builtin import torch_nn
from goldformer.adapters.textbook.build import build_textbook
from goldformer.spec.formulas.attention import weigh_keys
from goldformer.spec.formulas.layers import (
    DECODER_LAYER,
    ENCODER_LAYER,
    FEED_FORWARD,
    NORM,
    layer_norm,
    norm_params,
    note_sum,
    run_sublayer,
    stack_params,
)
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import around
from spoiled import spoil
from torch_variants import UNIT_ROUNDOFF, draw, every_dtype, every_variant, tensors

# No two sizes alike, but that PyTorch wants heads, values and output as wide as the tokens.
SIZES = {"batch": 3, "seq": 5, "source_seq": 7, "d_model": 22, "d_ff": 17, "heads*d_k": 22, "heads*d_v": 22}
HEADS, LAYERS, VOCAB, PAD = 2, 2, 19, 4
CAUSAL = np.tri(SIZES["seq"], dtype=bool)
LENGTHS = (np.arange(SIZES["seq"]) < np.array([5, 4, 2])[:, None])[:, None, None, :]
SOURCE_LENGTHS = (np.arange(SIZES["source_seq"]) < np.array([3, 7, 5])[:, None])[:, None, None, :]
OTHERS = np.random.default_rng(9).random((3, HEADS, 5, 7)) < 0.7
OTHERS[..., 0] = True
TARGET = np.array([[7, 11, 5, 18, 9], [6, 8, 11, 13, PAD], [5, 17, PAD, PAD, PAD]])


@spoil(instead_of=run_sublayer)
def pre_norm(x, function, *, number, sums, params):
    output, extra = function(layer_norm(x, params=norm_params(params, number)))
    return note_sum(x, output, sums), extra


def list_layers(adapter):
    """Return the layers of the textbook that follow what a variant declares, as far as it shows in every row."""
    declared = adapter.CONVENTIONS
    layers = pre_norm.layers if declared.get("norm_placement") == "pre" else ()
    return (*layers, OPTIONS["activation", declared["activation"]]) if "activation" in declared else layers


def drawn(table, seed=0, end=2.0):
    """Arrays for a table of axes, by name."""
    shapes = {name: [SIZES[axis] for axis in axes.removeprefix("? ").split()] for name, axes in table.items()}
    arrays = {n: draw(seed + i, *shape, end=end) for i, (n, shape) in enumerate(shapes.items())}
    # Norms scale by about 1, so that no signal dies in the stacks; bfloat16 holds these as well.
    return arrays | {n: 1 + arrays[n] / 2 for n in arrays if n.endswith("gamma")}


X = {"x": "batch seq d_model"}
PARAMS = {
    "encoder_layer": ENCODER_LAYER,
    "decoder_layer": DECODER_LAYER,
    "encoder": stack_params("encoder", ENCODER_LAYER, LAYERS),
    "decoder": stack_params("decoder", DECODER_LAYER, LAYERS),
}
MASKS = {
    "none": (None, None),
    "lengths": (LENGTHS, SOURCE_LENGTHS),
    "both": (CAUSAL & LENGTHS, SOURCE_LENGTHS),
    "heads": (np.stack([CAUSAL, np.ones_like(CAUSAL)]), OTHERS),
}
every_layer = pytest.mark.parametrize("component", PARAMS)


@cache
def layer_params(component):
    return drawn(PARAMS[component], seed=100, end=0.5)


def layer_arguments(component, masks=(None, None)):
    """The arguments of a layer or stack; two masks, of which an encoder takes the first."""
    given = drawn(X) | {"num_heads": HEADS, "params": dict(layer_params(component))}
    given |= {"num_layers": LAYERS} if component in ("encoder", "decoder") else {}
    if component.startswith("encoder"):
        return given | {"mask": masks[0]}
    memory = drawn({"memory": "batch source_seq d_model"}, seed=50)
    return given | memory | {"self_mask": masks[0], "memory_mask": masks[1]}


def outputs(returned):
    if isinstance(returned, dict):
        return list(returned.values())
    return list(returned) if isinstance(returned, tuple) else [returned]


def compare(adapter, component, arguments, dtype="float64"):
    """Hold a variant to the textbook in float64."""
    textbook = build_textbook(*list_layers(adapter))
    expected = outputs(getattr(textbook, component)(**arguments))
    got = outputs(getattr(adapter, component)(**tensors(arguments, dtype)))
    for want, tensor in zip(expected, got, strict=False):  # layers give the output alone
        assert tensor.dtype == (getattr(torch, dtype) if want.dtype.kind == "f" else torch.int64)
        assert tensor.shape == want.shape
        # Inputs are equal in all dtypes; 64 unit roundoffs are over three times the most that was seen, 19.
        bound = 64 * UNIT_ROUNDOFF[dtype] * max(1, np.abs(want).max())
        np.testing.assert_allclose(tensor.double().numpy(), want, rtol=0, atol=bound)


# The same numbers as the textbook


@pytest.mark.sample(40)
@every_variant
@every_layer
@pytest.mark.parametrize("masks", MASKS)
def test_layers_and_stacks(adapter, component, masks):
    compare(adapter, component, layer_arguments(component, MASKS[masks]))


@pytest.mark.sample(30)
@every_variant
@every_layer
@pytest.mark.parametrize("masks", ["none", "both"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_layers_and_stacks_in_other_dtypes(adapter, component, masks, dtype):
    compare(adapter, component, layer_arguments(component, MASKS[masks]), dtype)


@every_variant
@every_layer
@pytest.mark.parametrize("given", [{"q", "v", "2"}, set()], ids=["some", "none"])
def test_biases_may_be_absent(adapter, component, given):
    arguments = layer_arguments(component, MASKS["both"])
    biases = {name for name in arguments["params"] if name.rpartition(".")[2].startswith("b_")}
    absent = {name for name in biases if name[-1] not in given}
    arguments["params"] = {name: p for name, p in arguments["params"].items() if name not in absent}
    compare(adapter, component, arguments)
    # And so may they be there and None.
    t = tensors(arguments, "float64")
    with_none = t | {"params": t["params"] | dict.fromkeys(absent)}
    method = getattr(adapter, component)
    assert torch.equal(method(**t), method(**with_none))


@every_variant
@pytest.mark.parametrize("component", ["encoder", "decoder"])
@pytest.mark.parametrize("masks", ["none", "both"])
def test_a_stack_ends_with_the_norm_that_its_parameters_have(adapter, component, masks):
    arguments = layer_arguments(component, MASKS[masks])
    plain = getattr(adapter, component)(**tensors(arguments, "float64"))
    arguments["params"] |= {"norm.gamma": draw(3, 22, end=2.0), "norm.beta": draw(4, 22, end=2.0)}
    compare(adapter, component, arguments)
    assert not torch.allclose(getattr(adapter, component)(**tensors(arguments, "float64")), plain)


@pytest.mark.parametrize("masks", ["none", "lengths"])
def test_the_average_of_the_weights_is_their_mean(masks):
    sizes = {"w_q": (22, 22), "w_k": (22, 22), "w_v": (22, 22), "w_o": (22, 22)}
    params = {name: draw(i, *shape, end=0.5) for i, (name, shape) in enumerate(sizes.items())}
    x = draw(9, 3, 5, 22)
    given = tensors({"query": x, "key": x, "value": x, "mask": MASKS[masks][0], "params": params}, "float64")
    found = torch_nn.torch_nn.multi_head_attention(**given, num_heads=HEADS)
    assert found["average_weights"].shape == (3, 5, 5)
    torch.testing.assert_close(found["average_weights"], found["weights"].mean(dim=1), rtol=0, atol=1e-15)


@every_variant
@every_layer
@pytest.mark.parametrize("masks", ["none", "both"])
def test_gradients_reach_the_parameters(adapter, component, masks):
    arguments = tensors(layer_arguments(component, MASKS[masks]), "float64")
    for parameter in arguments["params"].values():
        parameter.requires_grad_()
    output = getattr(adapter, component)(**arguments)
    output.backward(torch.from_numpy(draw(7, *output.shape)))
    # A bias of the keys adds one number to all scores of a row: its gradient is 0 up to rounding.
    small = {name for name, p in arguments["params"].items() if p.grad.abs().max() < 1e-9}
    assert small == {name for name in arguments["params"] if name.endswith("b_k")}


@every_dtype
def test_smaller_components(dtype):
    adapter = torch_nn.torch_nn
    x = drawn(X)
    logits = draw(8, 3, 5, VOCAB)
    vocab = {"w_vocab": draw(9, 22, VOCAB, end=0.5), "b_vocab": draw(10, VOCAB, end=0.5)}
    target = np.eye(VOCAB)[TARGET] * 0.75 + np.eye(VOCAB)[TARGET - 1] * 0.25
    feed = drawn(FEED_FORWARD, end=0.5)
    compare(adapter, "feed_forward", x | {"params": feed}, dtype)
    compare(adapter, "feed_forward", x | {"params": {n: feed[n] for n in ("w_1", "w_2")}}, dtype)
    compare(adapter, "layer_norm", x | {"params": drawn(NORM, end=0.5)}, dtype)
    compare(adapter, "output_probabilities", x | {"params": vocab}, dtype)
    compare(adapter, "cross_entropy", {"logits": logits, "targets": TARGET, "pad_id": PAD}, dtype)
    compare(adapter, "cross_entropy", {"logits": logits, "targets": TARGET, "pad_id": -1}, dtype)
    compare(adapter, "kl_divergence", {"target": target, "logits": logits}, dtype)
    compare(adapter, "kl_divergence", {"target": target[0, 0], "logits": logits[0, 0]}, dtype)
    for length in (1, 5, 8):
        compare(adapter, "pad_or_truncate", x | {"length": length}, dtype)


def test_ids():
    compare(torch_nn.torch_nn, "one_hot", {"ids": TARGET, "vocab": VOCAB})
    compare(torch_nn.torch_nn, "shift_right", {"ids": TARGET, "bos_id": 1})


def test_layer_norm_has_the_eps_of_the_contract():
    row = np.array([1, 1, 1, 1.001])
    compare(torch_nn.torch_nn, "layer_norm", {"x": row, "params": {"gamma": np.ones(4), "beta": np.zeros(4)}})


# Where a mask goes, and by which path


def spied(adapter, component, masks, monkeypatch):
    """The module that a call runs, and its options."""
    seen = {}

    def spy(module, state, inputs, options):
        seen.update(module=module, options=options)
        return torch.func.functional_call(module, state, inputs, options)

    monkeypatch.setattr(torch_nn, "functional_call", spy)
    getattr(adapter, component)(**tensors(layer_arguments(component, masks), "float64"))
    return seen["module"], seen["options"]


NAMES = {
    ("encoder_layer", "lengths"): {"src_key_padding_mask": (3, 5)},
    ("encoder_layer", "both"): {"src_mask": (6, 5, 5)},
    ("encoder", "both"): {"mask": (6, 5, 5)},
    ("decoder_layer", "lengths"): {"tgt_key_padding_mask": (3, 5), "memory_key_padding_mask": (3, 7)},
    ("decoder", "both"): {"tgt_mask": (6, 5, 5), "memory_key_padding_mask": (3, 7)},
    ("decoder", "heads"): {"tgt_mask": (6, 5, 5), "memory_mask": (6, 5, 7)},
}


@every_variant
@pytest.mark.parametrize(("component", "masks", "names"), [(*key, names) for key, names in NAMES.items()])
def test_masks_take_their_places(adapter, component, masks, names, monkeypatch):
    _, options = spied(adapter, component, MASKS[masks], monkeypatch)
    assert {name: tuple(mask.shape) for name, mask in options.items()} == names
    for mask in options.values():
        hidden = mask == -math.inf if adapter.additive_masks else mask
        assert hidden.dtype == torch.bool
        assert not hidden[..., 0].any()
        assert hidden.any()


@every_variant
@every_layer
@pytest.mark.parametrize("masks", ["none", "lengths"])
def test_only_without_masks_a_layer_may_take_the_fast_path(adapter, component, masks, monkeypatch):
    module, options = spied(adapter, component, MASKS[masks], monkeypatch)
    assert module.training == (bool(options) or adapter.backend != "default")


# A row without a key: each variant does what it declares, in every dtype, by either way in


@every_variant
@every_dtype
@pytest.mark.parametrize("component", ["encoder_layer", "decoder"])
@pytest.mark.parametrize("mask_of", ["keys", "scores"])
def test_empty_row_is_as_declared(adapter, dtype, component, mask_of):
    assert adapter.CONVENTIONS[f"{component}.empty_row"] == "zeros"

    def weigh_keys_of_filled_rows(original, scaled, mask):
        return np.where(mask.any(-1, keepdims=True), original(scaled, mask), 0)

    zeros = build_textbook(*list_layers(adapter), {weigh_keys: around(weigh_keys_of_filled_rows)})
    masks = [np.ones((3, 1, 1 if mask_of == "keys" else 5, keys), dtype=bool) for keys in (5, 7)]
    for mask in masks:
        mask[1, 0, 0 if mask_of == "keys" else 3] = False
    arguments = layer_arguments(component, masks)
    expected = getattr(zeros, component)(**arguments)["output"]
    got = getattr(adapter, component)(**tensors(arguments, dtype)).double().numpy()
    bound = 64 * UNIT_ROUNDOFF[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("heads", [2, 1])
def test_the_fast_path_is_why_masks_are_kept_from_it(heads):
    """In evaluation a row without a key is NaN or not, as the number of heads has it."""
    layer = torch.nn.TransformerEncoderLayer(4, heads, 3, batch_first=True).eval().requires_grad_(False)
    empty = torch.ones(1, 2, dtype=torch.bool)
    got = layer(torch.ones(1, 2, 4), src_key_padding_mask=empty)
    assert got.isnan().all() == (heads == 2)


# What is declined


@pytest.mark.parametrize(
    ("component", "name", "shape", "message"),
    [
        ("encoder_layer", "self_attention.w_v", (22, 26), "for heads·d_k and heads·d_v: 22 and 26 differ"),
        ("decoder_layer", "cross_attention.w_o", (22, 29), "for heads·d_k and output: 22 and 29 differ"),
        ("encoder", "encoder.0.self_attention.w_q", (22, 26), "for heads·d_k and query: 26 and 22 differ"),
    ],
)
def test_widths_beyond_embed_dim_are_declined(component, name, shape, message):
    arguments = layer_arguments(component)
    arguments["params"][name] = draw(1, *shape)
    with pytest.raises(NotImplementedError, match=f"one width, embed_dim, {message}"):
        getattr(torch_nn.torch_nn, component)(**tensors(arguments, "float64"))


def test_other_errors_stay_errors():
    adapter = torch_nn.torch_nn
    arguments = tensors(layer_arguments("encoder"), "float64")
    with pytest.raises(AssertionError, match="embed_dim must be divisible by num_heads"):
        adapter.encoder(**arguments | {"num_heads": 3})
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        adapter.one_hot(torch.tensor([[7]]), vocab=7)
