"""What all components of the reference share: names, dtypes, devices, tracing, gradients."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import goldformer.reference_impl as reference

BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_V = 3, 2, 5, 7, 11, 13
D_MODEL, D_QUERY, D_KEY, D_VALUE, VOCAB = 22, 17, 19, 23, 29

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Maker:
    """Draws the arguments of a call, the same ones for every dtype and device up to rounding."""

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator().manual_seed(2017)
        self.drawn: list[Tensor] = []

    def real(self, *shape: int) -> Tensor:
        # Drawn small enough that nothing saturates, with the generator of the CPU whatever the device.
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64) / 4
        self.drawn.append(drawn.to(self.device, self.dtype))
        return self.drawn[-1]

    def ids(self) -> Tensor:
        return torch.randint(VOCAB, (BATCH, KV_SEQ), generator=self.generator).to(self.device)

    def mask(self, q_seq: int = Q_SEQ) -> Tensor:
        """Causal, and nothing at all for query 0: both kinds of row."""
        mask = reference.causal_mask(q_seq, KV_SEQ, device=self.device)
        return mask & (torch.arange(q_seq, device=self.device) > 0)[:, None]

    def module(self, module: nn.Module) -> nn.Module:
        state = {name: self.real(*tensor.shape) for name, tensor in module.state_dict().items() if name != "pe"}
        module.to(self.device, self.dtype).load_state_dict(state, strict=False)
        return module


class Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = {}  # noqa: RUF012 - read only

    def __call__(self) -> tuple[Tensor, ...]:
        result = self.function(*self.arguments, **self.keywords)
        return (result,) if isinstance(result, Tensor) else tuple(result)


def _heads_parameters(m: Maker) -> dict[str, Any]:
    return {
        "num_heads": HEADS,
        "w_q": m.real(D_QUERY, HEADS * D_K),
        "w_k": m.real(D_KEY, HEADS * D_K),
        "w_v": m.real(D_VALUE, HEADS * D_V),
        "w_o": m.real(HEADS * D_V, D_MODEL),
        "b_q": m.real(HEADS * D_K),
        "b_k": m.real(HEADS * D_K),
        "b_v": m.real(HEADS * D_V),
        "b_o": m.real(D_MODEL),
    }


def _cross(m: Maker) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        m.real(BATCH, Q_SEQ, D_QUERY),
        m.real(BATCH, KV_SEQ, D_KEY),
        m.real(BATCH, KV_SEQ, D_VALUE),
        m.mask(),
    )


def _square(m: Maker) -> dict[str, Tensor]:
    return {name: m.real(D_K, D_K) for name in ("w_q", "w_k", "w_v")}


# Calls whose results are floating point, functions first.
CALLS: dict[str, Callable[[Maker], Call]] = {
    "softmax": lambda m: Call(reference.softmax, (m.real(BATCH, Q_SEQ, KV_SEQ),)),
    "attention_scores": lambda m: Call(
        reference.attention_scores, (m.real(BATCH, Q_SEQ, D_K), m.real(BATCH, KV_SEQ, D_K))
    ),
    "scaled_scores": lambda m: Call(reference.scaled_scores, (m.real(BATCH, Q_SEQ, D_K), m.real(BATCH, KV_SEQ, D_K))),
    "scaled_dot_product_attention": lambda m: Call(
        reference.scaled_dot_product_attention,
        (m.real(BATCH, Q_SEQ, D_K), m.real(BATCH, KV_SEQ, D_K), m.real(BATCH, KV_SEQ, D_V), m.mask()),
    ),
    "token_embedding": lambda m: Call(reference.token_embedding, (m.ids(), m.real(VOCAB, D_MODEL))),
    "positional_encoding": lambda m: Call(reference.positional_encoding, (m.real(BATCH, Q_SEQ, D_MODEL),)),
    "split_heads": lambda m: Call(reference.split_heads, (m.real(BATCH, Q_SEQ, HEADS * D_K), HEADS)),
    "merge_heads": lambda m: Call(reference.merge_heads, (m.real(BATCH, HEADS, Q_SEQ, D_K),)),
    "multi_head_attention": lambda m: Call(reference.multi_head_attention, _cross(m), _heads_parameters(m)),
    "fused_multi_head_attention": lambda m: Call(
        reference.fused_multi_head_attention,
        (m.real(BATCH, KV_SEQ, D_QUERY), m.mask(KV_SEQ)),
        {
            "num_heads": HEADS,
            "w_qkv": m.real(D_QUERY, 3 * D_MODEL),
            "w_o": m.real(D_MODEL, D_MODEL),
            "b_qkv": m.real(3 * D_MODEL),
            "b_o": m.real(D_MODEL),
        },
    ),
    "single_head_attention": lambda m: Call(
        reference.single_head_attention, (m.real(Q_SEQ, D_K),), {**_square(m), "causal": True}
    ),
    "TokenEmbedding": lambda m: Call(m.module(reference.TokenEmbedding(VOCAB, D_MODEL)), (m.ids(),)),
    "PositionalEncoding": lambda m: Call(
        m.module(reference.PositionalEncoding(D_MODEL, max_len=KV_SEQ)), (m.real(BATCH, Q_SEQ, D_MODEL),)
    ),
    "MultiHeadAttention": lambda m: Call(
        m.module(reference.MultiHeadAttention(D_MODEL, HEADS, d_key=D_KEY, d_value=D_VALUE)),
        (m.real(BATCH, Q_SEQ, D_MODEL), *_cross(m)[1:]),
    ),
    "FusedMultiHeadAttention": lambda m: Call(
        m.module(reference.FusedMultiHeadAttention(D_QUERY, D_MODEL, HEADS)),
        (m.real(BATCH, KV_SEQ, D_QUERY), m.mask(KV_SEQ)),
    ),
    "SingleHeadAttention": lambda m: Call(m.module(reference.SingleHeadAttention(D_K)), (m.real(Q_SEQ, D_K),)),
}
every_call = pytest.mark.parametrize("name", CALLS)


def test_all_is_sorted_and_holds_every_public_name():
    assert list(reference.__all__) == sorted(reference.__all__)
    defined = {
        name
        for module in pkgutil.iter_modules(reference.__path__)
        if not module.name.startswith("_")
        for name, thing in vars(importlib.import_module(f"{reference.__name__}.{module.name}")).items()
        if isinstance(thing, type | FunctionType) and thing.__module__.endswith(f".{module.name}")
    }
    assert set(reference.__all__) == defined - {"angle_dtype"}


def test_every_public_function_is_called_below():
    without_floats = {"causal_mask", "padding_mask", "sinusoid_table", "SingleHeadResult"}
    assert set(CALLS) == set(reference.__all__) - without_floats


@pytest.mark.parametrize("name", reference.__all__)
def test_every_function_names_its_shapes_errors_and_source(name):
    thing = getattr(reference, name)
    if inspect.isfunction(thing):
        for heading in ("    Shapes:   ", "    Errors:   ", "    Source:   "):
            assert heading in thing.__doc__


@every_call
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_result_has_the_dtype_and_the_device_of_the_input_and_the_value_of_float64(name, dtype, device):
    exact = CALLS[name](Maker())()
    got = CALLS[name](Maker(device, dtype))()

    assert len(got) == len(exact)
    # Some roundings of numbers near 1: loose enough for every component here, too tight for a wrong formula.
    tolerance = 16 * torch.finfo(dtype).eps
    for output, golden in zip(got, exact, strict=True):
        assert output.dtype == dtype
        assert output.device.type == device
        torch.testing.assert_close(output.cpu().double(), golden, rtol=tolerance, atol=tolerance)


@every_call
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_runs_on_the_meta_device_with_the_same_shapes(name, dtype):
    exact = CALLS[name](Maker())()
    got = CALLS[name](Maker("meta", dtype))()

    for output, golden in zip(got, exact, strict=True):
        assert output.is_meta
        assert output.dtype == dtype
        assert output.shape == golden.shape


@every_call
def test_compiles_without_a_graph_break(name):
    torch.compiler.reset()
    call = CALLS[name](Maker())
    compiled = torch.compile(call.function, fullgraph=True, backend="eager")

    for output, golden in zip(call._replace(function=compiled)(), call(), strict=True):
        torch.testing.assert_close(output, golden, rtol=0, atol=0)


def test_compiles_with_sizes_that_stay_symbolic():
    torch.compiler.reset()
    compiled = torch.compile(reference.multi_head_attention, fullgraph=True, backend="eager", dynamic=True)
    parameters = _heads_parameters(m := Maker())

    for batch, q_seq, kv_seq in ((3, 5, 7), (2, 4, 9)):
        query, key, value = m.real(batch, q_seq, 17), m.real(batch, kv_seq, 19), m.real(batch, kv_seq, 23)
        mask = reference.causal_mask(q_seq, kv_seq)
        expected = reference.multi_head_attention(query, key, value, mask, **parameters)
        torch.testing.assert_close(compiled(query, key, value, mask, **parameters), expected, rtol=0, atol=0)


class Pipeline(nn.Module):
    """The components that make tensors of the length of their input."""

    def forward(self, x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
        placed = reference.positional_encoding(x[None])[0]
        return reference.single_head_attention(placed, w_q=w_q, w_k=w_k, w_v=w_v, causal=True).output


def test_exports_with_a_length_that_stays_symbolic():
    arguments = ((m := Maker()).real(Q_SEQ, D_K), *_square(m).values())
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Pipeline(), arguments, dynamic_shapes=({0: length}, None, None, None), strict=False)

    longer = (m.real(KV_SEQ, D_K), *arguments[1:])
    torch.testing.assert_close(program.module()(*longer), Pipeline()(*longer), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (reference.causal_mask, (Q_SEQ, KV_SEQ)),
        (reference.padding_mask, (torch.tensor([[4, 0, 0], [1, 2, 0]]), 0)),
        (reference.sinusoid_table, (Q_SEQ, D_MODEL)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_makers_of_tables_compile_without_a_graph_break(function, arguments):
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")

    assert torch.equal(compiled(*arguments), function(*arguments))


def test_makers_of_tables_make_them_on_the_device_that_is_asked_for():
    assert reference.causal_mask(Q_SEQ, KV_SEQ, device="meta").is_meta
    assert reference.sinusoid_table(Q_SEQ, D_MODEL, device="meta").is_meta
    assert reference.padding_mask(torch.zeros(BATCH, Q_SEQ, dtype=torch.int64, device="meta"), 0).is_meta
    with torch.device("meta"):
        assert reference.causal_mask(Q_SEQ, KV_SEQ).is_meta
        assert reference.sinusoid_table(Q_SEQ, D_MODEL).is_meta


@every_call
def test_gradients_agree_with_finite_differences(name):
    call = CALLS[name](m := Maker())
    # Whatever the call holds, its module's parameters included.
    parameters = list(call.function.parameters()) if isinstance(call.function, nn.Module) else []
    leaves = [t for t in m.drawn if any(t is a for a in (*call.arguments, *call.keywords.values()))]
    for leaf in leaves:
        leaf.requires_grad_()

    # fast_mode compares one random projection of the Jacobian: enough to notice any wrong entry.
    assert torch.autograd.gradcheck(lambda *_: call(), (*leaves, *parameters), fast_mode=True)


@every_call
def test_arguments_are_left_as_they_were(name):
    call = CALLS[name](m := Maker())
    before = [tensor.clone() for tensor in m.drawn]
    call()

    assert all(torch.equal(now, then) for now, then in zip(m.drawn, before, strict=True))


@every_call
def test_the_same_call_gives_the_same_bits(name):
    call = CALLS[name](Maker())

    assert all(torch.equal(first, second) for first, second in zip(call(), call(), strict=True))
