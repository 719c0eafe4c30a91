"""Functions under PyTorch's transformations: what is wrapped, what a call of it gives, and what cannot be wrapped."""

from __future__ import annotations

import functools
import inspect
import shutil
import sys

import pytest
import torch

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.wrapping import WRAPPERS, wrap_adapter

#: PyTorch calls what it has deprecated itself; a check ignores the warnings of a call.
PYTORCH_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Module:
    """An adapter module, made of functions."""

    def __init__(self, arrays="torch", **functions):
        self.ARRAYS = arrays
        self.__dict__.update(functions)


@pytest.fixture
def wrap(spec):
    """The adapter of some functions after a transformation."""

    def make(wrapper, arrays="torch", **functions):
        return wrap_adapter(Adapter.from_object(Module(arrays, **functions), "mine", spec), wrapper, spec)

    return make


def attend(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    return weights @ value, None, scores


def call(f, *shape, mask=None):
    query, key, value = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    return f(query=query, key=key, value=value, mask=mask), attend(query, key, value, mask)


@pytest.mark.parametrize("wrapper", ["export", "vmap"])
@pytest.mark.parametrize(
    "mask", [None, torch.ones(3, 3).tril() > 0, torch.tensor([[[True, True, False]], [[True, False, False]]])]
)
def test_a_wrapped_function_returns_what_the_function_returns(wrapper, mask, wrap):
    got, wanted = call(wrap(wrapper, scaled_dot_product_attention=attend).functions["scaled_dot_product_attention"],
                       2, 3, 4, mask=mask)  # fmt: skip
    torch.testing.assert_close(got["output"] if wrapper == "vmap" else got[0], wanted[0])


def test_vmap_hands_over_one_sample_as_a_batch_and_returns_all_outputs_with_their_samples(wrap):
    seen = []

    def spy(query, key, value, mask=None):
        seen.append((tuple(query.shape), None if mask is None else tuple(mask.shape)))
        return attend(query, key, value, mask)

    f = wrap("vmap", scaled_dot_product_attention=spy).functions["scaled_dot_product_attention"]
    mask = torch.tensor([True, True, False]).expand(5, 1, 3)
    got, wanted = call(f, 5, 3, 4, mask=mask)
    # One mask for all samples is whole in each of them.
    call(f, 5, 3, 4, mask=mask[0])
    assert seen == [((1, 3, 4), (1, 1, 3)), ((1, 3, 4), (1, 3))]
    assert list(got) == ["output", "scores"]
    torch.testing.assert_close(got["scores"], wanted[2])


def test_export_makes_a_program_for_each_form_of_a_call_and_runs_it_again(wrap):
    runs = []

    def spy(scores):
        runs.append(tuple(scores.shape))
        return scores.softmax(-1)

    softmax = wrap("export", softmax=spy).functions["softmax"]
    for rows in (2, 2, 3):
        softmax(scores=torch.randn(rows, 4))
    assert len(runs) > 1
    before = len(runs)
    torch.testing.assert_close(softmax(scores=torch.zeros(3, 4)), torch.full((3, 4), 0.25))
    assert len(runs) == before


@PYTORCH_WARNS
def test_script_compiles_functions_that_have_its_types(wrap):
    def softmax(scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, -1)

    scripted = wrap("script", softmax=softmax).functions["softmax"]
    torch.testing.assert_close(scripted(scores=torch.zeros(1, 4)), torch.full((1, 4), 0.25))


# Inductor takes ten seconds; the next test compiles without it.
@pytest.mark.sample(0)
@PYTORCH_WARNS
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_compile_gives_what_the_function_gives(wrap):
    softmax = wrap("compile", softmax=lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True))
    torch.testing.assert_close(softmax.functions["softmax"](scores=torch.zeros(2, 4)), torch.full((2, 4), 0.25))


@PYTORCH_WARNS
def test_compile_takes_more_forms_of_a_call_than_pytorch_compiles_by_itself(wrap, monkeypatch):
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    softmax = wrap("compile", softmax=lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True))
    for axes in range(1, 11):
        shape = (*[1] * (axes - 1), 4)
        torch.testing.assert_close(softmax.functions["softmax"](scores=torch.zeros(shape)), torch.full(shape, 0.25))


def test_compile_says_which_compiler_is_missing(wrap, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    softmax = wrap("compile", softmax=lambda scores: scores).functions["softmax"]
    with pytest.raises(
        NotImplementedError, match=r"^torch.compile needs a C\+\+ compiler, and no-such-compiler is not"
    ):
        softmax(scores=torch.zeros(2))


def test_vmap_says_where_there_are_no_samples(wrap):
    wrapped = wrap("vmap", softmax=lambda scores: scores, causal_mask=lambda q_seq, kv_seq: None).functions
    with pytest.raises(NotImplementedError, match=r"^no argument of softmax has an axis of samples, which torch.vmap"):
        wrapped["softmax"](scores=torch.zeros(4))
    with pytest.raises(NotImplementedError, match=r"^no argument of causal_mask has an axis of samples"):
        wrapped["causal_mask"](q_seq=2, kv_seq=2)
    loss = wrap("vmap", cross_entropy=lambda logits, targets, **_: logits.sum()).functions["cross_entropy"]
    with pytest.raises(NotImplementedError, match=r"^cross_entropy returns no axis of samples"):
        loss(logits=torch.zeros(2, 3, 4), targets=torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_functions_of_other_arrays_are_declined_in_a_sentence(wrapper, wrap):
    softmax = wrap(wrapper, arrays="numpy", softmax=lambda scores: scores).functions["softmax"]
    why = f"^{WRAPPERS[wrapper]} takes functions of PyTorch, and these work on numpy arrays$"
    with pytest.raises(NotImplementedError, match=why):
        softmax(scores=None)


def test_a_wrapped_function_keeps_its_parameters(wrap, spec):
    """Optional arguments are handed over as far as a function takes them."""
    f = wrap("export", scaled_dot_product_attention=attend)
    assert f.broken == {}
    assert [*inspect.signature(f.functions["scaled_dot_product_attention"]).parameters] == [
        "query",
        "key",
        "value",
        "mask",
    ]


def test_a_backward_function_of_the_adapters_own_has_no_batch_to_map(wrap):
    wrapped = wrap("vmap", softmax=lambda scores: scores, softmax_gradient=lambda scores, cotangent: {})
    with pytest.raises(NotImplementedError, match=r"^the adapter's own backward function has no batch axis"):
        wrapped.gradients["softmax"](scores=None, cotangent=None)
