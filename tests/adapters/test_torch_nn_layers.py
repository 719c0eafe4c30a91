"""PyTorch's layers and stacks: where masks go, by which path, and what is declined."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from goldformer.adapters.builtin import torch_nn
from torch_variants import axes_of, draw, every_variant, tensors

# No two sizes alike, but that PyTorch wants heads, values and output as wide as the tokens.
SIZES = {"batch": 3, "seq": 5, "source_seq": 7, "d_model": 22, "d_ff": 17, "heads*d_k": 22, "heads*d_v": 22}
HEADS, LAYERS, VOCAB, PAD = 2, 2, 19, 4
CAUSAL = np.tri(SIZES["seq"], dtype=bool)
LENGTHS = (np.arange(SIZES["seq"]) < np.array([5, 4, 2])[:, None])[:, None, None, :]
SOURCE_LENGTHS = (np.arange(SIZES["source_seq"]) < np.array([3, 7, 5])[:, None])[:, None, None, :]
OTHERS = np.random.default_rng(9).random((3, HEADS, 5, 7)) < 0.7
OTHERS[..., 0] = True


def drawn(table, seed=0, end=2.0):
    """Arrays for a table of axes, by name."""
    shapes = {name: [SIZES[axis] for axis in axes.split()] for name, axes in table.items()}
    arrays = {n: draw(seed + i, *shape, end=end) for i, (n, shape) in enumerate(shapes.items())}
    # Norms scale by about 1, so that no signal dies in the stacks; bfloat16 holds these as well.
    return arrays | {n: 1 + arrays[n] / 2 for n in arrays if n.endswith("gamma")}


X = {"x": "batch seq d_model"}
PARAMS = {name: axes_of(name, LAYERS) for name in ("encoder_layer", "decoder_layer", "encoder", "decoder")}
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
