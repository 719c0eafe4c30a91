"""PyTorch's fast path: what the profiler saw running, every case that is judged, and what is declined."""

import re
from functools import cache

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from goldformer.adapters.builtin import torch_nn_fast_path as adapter
from goldformer.conformance.judging.verdict import Status
from torch_variants import axes_of, draw, every_dtype, tensors

# Nested tensors are a prototype, PyTorch says.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")

SIZES = {"d_model": 22, "d_ff": 17, "heads*d_k": 22, "heads*d_v": 22}
BATCH, SEQ, HEADS, LAYERS = 3, 5, 2, 3
CAUSAL = np.tri(SEQ, dtype=bool)
LENGTHS = (np.arange(SEQ) < np.array([5, 4, 2])[:, None])[:, None, None, :]
MASKS = {
    "none": None,
    "lengths": LENGTHS,
    "first tokens hidden": LENGTHS[..., ::-1].copy(),
    "causal and lengths": CAUSAL & LENGTHS,
    "by head": np.stack([CAUSAL, np.ones_like(CAUSAL)]),
}
TABLES = {name: axes_of(name, LAYERS) for name in ("encoder_layer", "encoder")}
KERNEL, NEST = "aten::_transformer_encoder_layer_fwd", "aten::_nested_tensor_from_mask"
#: The profiler tells of a kernel twice: on its way to the adapter's own counter, and on its way on.
TOLD = 2

every_component = pytest.mark.parametrize("component", TABLES)
every_mask = pytest.mark.parametrize("mask", MASKS)


@cache
def params(component):
    shapes = {n: [SIZES[axis] for axis in axes.split()] for n, axes in TABLES[component].items()}
    arrays = {name: draw(seed, *shape, end=0.5) for seed, (name, shape) in enumerate(shapes.items())}
    return arrays | {name: 1 + arrays[name] / 2 for name in arrays if name.endswith("gamma")}


def arguments(component, mask=None, heads=HEADS):
    given = {"x": draw(99, BATCH, SEQ, 22), "mask": mask, "num_heads": heads, "params": dict(params(component))}
    return given | ({"num_layers": LAYERS} if component == "encoder" else {})


def seen(run):
    """The operators that ran, as PyTorch's profiler saw them, and what was returned."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        returned = run()
    return [event.name for event in profiler.events()], returned


@every_component
@every_mask
def test_the_kernel_runs_once_a_layer_and_nested_where_the_last_tokens_are_hidden(component, mask):
    given = tensors(arguments(component, MASKS[mask]), "float32")
    names, output = seen(lambda: getattr(adapter, component)(**given))
    assert names.count(KERNEL) == TOLD * (LAYERS if component == "encoder" else 1)
    nested = (component, mask) == ("encoder", "lengths")
    assert (NEST in names) == nested
    padded = torch.from_numpy(~LENGTHS[:, 0, 0])
    assert bool((output[padded] == 0).all()) == nested
    # Every other way goes through this.
    assert "aten::scaled_dot_product_attention" not in names


@pytest.mark.sample(1)
@every_dtype
def test_every_case_that_is_judged_passes_and_went_through_the_kernel(dtype, spec, bench, verdicts_of):
    names, verdicts = seen(lambda: verdicts_of(bench("torch-nn-fast-path", dtype), *TABLES))
    assert [(v.check, v.message) for v in verdicts if v.bad] == []
    judged = [v for v in verdicts if v.status is Status.PASSED and v.ratio is not None]
    layers = [int(spec.cases[v.check].attributes.get("num_layers", 1)) for v in judged]
    assert len(judged) >= 18
    # The working calls that refusals are held against run it too.
    assert names.count(KERNEL) >= TOLD * sum(layers)
    assert names.count(NEST) >= 2


# What is declined


@every_component
@pytest.mark.parametrize("heads", [1, 11])
def test_an_odd_number_of_heads_is_declined(component, heads):
    with pytest.raises(NotImplementedError, match="fast path asks for an even number of heads and for no gradients"):
        getattr(adapter, component)(**tensors(arguments(component, heads=heads), "float32"))


@every_component
@pytest.mark.parametrize("which", ["x", "params"])
def test_gradients_are_declined_and_a_tensor_that_has_them_is_not_where_none_are_kept(component, which):
    given = tensors(arguments(component), "float32")
    (given["x"] if which == "x" else next(p for n, p in given["params"].items() if n.endswith("w_1"))).requires_grad_()
    with pytest.raises(NotImplementedError, match="for no gradients"):
        getattr(adapter, component)(**given)
    with torch.no_grad():
        assert getattr(adapter, component)(**given).shape == given["x"].shape


@every_component
def test_whatever_keeps_pytorch_from_it_is_noticed(component, monkeypatch):
    given = tensors(arguments(component, LENGTHS), "float32")
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
    with pytest.raises(NotImplementedError, match="PyTorch's fast path asks for"):
        getattr(adapter, component)(**given)


def test_another_error_stays_itself():
    given = tensors(arguments("encoder_layer"), "float32")
    given["params"]["feed_forward.w_2"] = given["params"]["feed_forward.w_2"][1:]
    with pytest.raises(RuntimeError) as raised:
        adapter.encoder_layer(**given)
    assert raised.type is RuntimeError
    assert not re.search("fast path", str(raised.value))


# A query without a key


@every_dtype
@pytest.mark.parametrize("mask_of", ["keys", "scores"])
def test_an_empty_row_is_nan_as_declared(dtype, mask_of):
    mask = np.ones((BATCH, 1, 1 if mask_of == "keys" else SEQ, SEQ), dtype=bool)
    mask[1, 0, 0 if mask_of == "keys" else 3] = False
    assert adapter.CONVENTIONS == {"empty_row": "nan"}
    got = adapter.encoder_layer(**tensors(arguments("encoder_layer", mask), dtype))
    empty = torch.zeros(BATCH, SEQ, dtype=torch.bool)
    empty[1, slice(None) if mask_of == "keys" else 3] = True
    assert torch.equal(got.isnan().all(-1), empty)
    assert not got[~empty].isnan().any()


@every_dtype
def test_a_sample_of_padding_alone_is_zeros_where_tensors_are_nested(dtype):
    """As docs/findings.md says of the stack; with another sample padded in front nothing is nested, and it is NaN."""
    mask = LENGTHS.copy()
    mask[1] = False
    got = adapter.encoder(**tensors(arguments("encoder", mask), dtype))
    assert (got[1] == 0).all()
    mask[2] = mask[2, ..., ::-1]
    got = adapter.encoder(**tensors(arguments("encoder", mask), dtype))
    assert got[1].isnan().all()
    assert not got[[0, 2]].isnan().any()
