"""All components of the reference share their conventions: names, dtypes, devices, tracing, gradients."""

import importlib
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import goldformer.reference_impl as reference
import reference_functions as functions
from goldformer.adapters.builtin import reference as adapter

BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_V = 3, 2, 5, 7, 11, 13
D_MODEL, D_QUERY, D_KEY, D_VALUE, VOCAB = 22, 17, 19, 23, 29
D_FF, PAD = 31, 0

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

    def ids(self, seq: int = KV_SEQ) -> Tensor:
        """Words, and behind them padding in all samples but the first."""
        ids = torch.randint(1, VOCAB, (BATCH, seq), generator=self.generator)
        for sample in range(1, BATCH):
            ids[sample, seq - sample :] = PAD
        return ids.to(self.device)

    def mask(self, q_seq: int = Q_SEQ) -> Tensor:
        """Causal, and nothing at all for query 0: both kinds of row."""
        mask = reference.causal_mask(q_seq, KV_SEQ, device=self.device)
        return mask & (torch.arange(q_seq, device=self.device) > 0)[:, None]

    def module(self, module: nn.Module) -> nn.Module:
        state = {name: self.real(*tensor.shape) for name, tensor in module.state_dict().items()}
        module.to(self.device, self.dtype).load_state_dict(state, strict=False)
        return module.eval()

    def params(self, module: nn.Module) -> dict[str, Tensor]:
        """Parameters for a plain function, named as those of its module."""
        return {name: self.real(*tensor.shape) for name, tensor in module.state_dict().items()}


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


def _model(m: Maker) -> reference.Transformer:
    return reference.Transformer(VOCAB, D_MODEL, HEADS, 1, 1, D_FF, pad_id=PAD, device=m.device)


def _decoded(m: Maker) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    memory_mask = reference.padding_mask(m.ids(), PAD)
    self_mask = reference.causal_mask(Q_SEQ, Q_SEQ, device=m.device)
    return m.real(BATCH, Q_SEQ, D_MODEL), m.real(BATCH, KV_SEQ, D_MODEL), self_mask, memory_mask


def _sentences(m: Maker) -> dict[str, Any]:
    params = m.params(_model(m))
    # Two words and eos_id stand out, so far that no rounding of a dtype changes the order.
    favoured = torch.zeros(VOCAB).index_put((torch.tensor([5, 9, 2]),), torch.tensor([8.0, 6.0, 4.0]))
    params["b_vocab"] = params["b_vocab"] + favoured.to(m.device, m.dtype)
    return {
        "num_heads": HEADS,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "pad_id": PAD,
        "bos_id": 1,
        "eos_id": 2,
        "max_length": 2,
        "params": params,
    }


def _decoder_only_layer(device: str) -> nn.Module:
    return reference.DecoderOnlyLayer(D_MODEL, 4, 2, D_FF, head_width=6, bias=True, device=device)


def _expert_feed_forward(device: str) -> nn.Module:
    return reference.ExpertFeedForward(D_MODEL, D_FF, 4, 2, bias=True, device=device)


def _decoder_only_model(device: str) -> nn.Module:
    return reference.DecoderOnlyModel(VOCAB, D_MODEL, 4, 2, D_FF, 2, head_width=6, pad_id=PAD, device=device)


# Calls whose results are floating point, functions first.
CALLS: dict[str, Callable[[Maker], Call]] = {
    "softmax": lambda m: Call(reference.softmax, (m.real(BATCH, Q_SEQ, KV_SEQ),)),
    "attention_scores": lambda m: Call(
        reference.attention_scores, (m.real(BATCH, Q_SEQ, D_K), m.real(BATCH, KV_SEQ, D_K))
    ),
    "scaled_scores": lambda m: Call(reference.scaled_scores, (m.real(BATCH, Q_SEQ, D_K), m.real(BATCH, KV_SEQ, D_K))),
    "scaled_dot_product_attention": lambda m: Call(
        functions.scaled_dot_product_attention,
        (m.real(BATCH, Q_SEQ, D_K), m.real(BATCH, KV_SEQ, D_K), m.real(BATCH, KV_SEQ, D_V), m.mask()),
    ),
    "repeat_heads": lambda m: Call(reference.repeat_heads, (m.real(BATCH, 2, KV_SEQ, D_K), 4)),
    "grouped_query_attention": lambda m: Call(
        functions.grouped_query_attention,
        (m.real(BATCH, 4, Q_SEQ, D_K), m.real(BATCH, 2, KV_SEQ, D_K), m.real(BATCH, 2, KV_SEQ, D_V)),
    ),
    "cached_attention": lambda m: Call(
        lambda *arrays: reference.cached_attention(*arrays)[0],
        (m.real(BATCH, 4, Q_SEQ, D_K), m.real(BATCH, 2, Q_SEQ, D_K), m.real(BATCH, 2, Q_SEQ, D_V)),
    ),
    "token_embedding": lambda m: Call(reference.token_embedding, (m.ids(), m.real(VOCAB, D_MODEL))),
    "positional_encoding": lambda m: Call(functions.positional_encoding, (m.real(BATCH, Q_SEQ, D_MODEL),)),
    "split_heads": lambda m: Call(reference.split_heads, (m.real(BATCH, Q_SEQ, HEADS * D_K), HEADS)),
    "merge_heads": lambda m: Call(reference.merge_heads, (m.real(BATCH, HEADS, Q_SEQ, D_K),)),
    "multi_head_attention": lambda m: Call(functions.multi_head_attention, _cross(m), _heads_parameters(m)),
    "cut_fused": lambda m: Call(reference.cut_fused, (m.real(BATCH, Q_SEQ, 3 * HEADS * D_K), HEADS)),
    "fused_multi_head_attention": lambda m: Call(
        functions.fused_multi_head_attention,
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
        functions.single_head_attention, (m.real(Q_SEQ, D_K),), {**_square(m), "causal": True}
    ),
    "single_head_attention_gradient": lambda m: Call(
        functions.single_head_attention_gradient,
        (m.real(Q_SEQ, D_K), m.real(Q_SEQ, D_K)),
        {**_square(m), "causal": True},
    ),
    "single_head_attention_step": lambda m: Call(
        functions.single_head_attention_step,
        (m.real(Q_SEQ, D_K), m.real(Q_SEQ, D_K)),
        {**_square(m), "causal": True, "learning_rate": 0.125, "steps": 2},
    ),
    "log_softmax": lambda m: Call(reference.log_softmax, (m.real(BATCH, Q_SEQ, VOCAB),)),
    "pad_or_truncate": lambda m: Call(reference.pad_or_truncate, (m.real(BATCH, Q_SEQ, D_MODEL), KV_SEQ)),
    "layer_norm": lambda m: Call(
        functions.layer_norm,
        (m.real(BATCH, Q_SEQ, D_MODEL),),
        {"gamma": m.real(D_MODEL), "beta": m.real(D_MODEL)},
    ),
    "rms_norm": lambda m: Call(functions.rms_norm, (m.real(BATCH, Q_SEQ, D_MODEL),), {"gamma": m.real(D_MODEL)}),
    "alibi_bias": lambda m: Call(reference.alibi_bias, (m.real(HEADS, Q_SEQ, KV_SEQ),)),
    "rotary_embedding": lambda m: Call(
        reference.rotary_embedding,
        (m.real(BATCH, HEADS, Q_SEQ, D_MODEL), torch.arange(2, Q_SEQ + 2, device=m.device)),
        {"base": 50.0, "rotary_width": D_MODEL - 4, "pairing": "half"},
    ),
    "expert_router": lambda m: Call(
        reference.expert_router, (m.real(Q_SEQ, D_MODEL), m.real(D_MODEL, D_FF)), {"top_k": 2}
    ),
    "expert_feed_forward": lambda m: Call(
        functions.expert_feed_forward,
        (m.real(BATCH, Q_SEQ, D_MODEL),),
        {"num_experts": 4, "top_k": 2, **m.params(_expert_feed_forward("meta"))},
    ),
    "ExpertFeedForward": lambda m: Call(m.module(_expert_feed_forward(m.device)), (m.real(BATCH, Q_SEQ, D_MODEL),)),
    "token_filter": lambda m: Call(
        reference.token_filter,
        (m.real(BATCH, D_MODEL), torch.zeros(BATCH, 1, dtype=torch.long, device=m.device)),
        {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.5},
    ),
    "feed_forward": lambda m: Call(
        functions.feed_forward,
        (m.real(BATCH, Q_SEQ, D_MODEL),),
        {"w_1": m.real(D_MODEL, D_FF), "w_2": m.real(D_FF, D_MODEL), "b_1": m.real(D_FF), "b_2": m.real(D_MODEL)},
    ),
    "decoder_only_layer": lambda m: Call(
        functions.decoder_only_layer,
        (m.real(BATCH, KV_SEQ, D_MODEL), m.mask(KV_SEQ)),
        {"num_heads": 4, "num_kv_heads": 2, **m.params(_decoder_only_layer("meta"))},
    ),
    "DecoderOnlyLayer": lambda m: Call(
        m.module(_decoder_only_layer(m.device)), (m.real(BATCH, KV_SEQ, D_MODEL), m.mask(KV_SEQ))
    ),
    "decoder_only_model": lambda m: Call(
        functions.decoder_only_model,
        (m.ids(),),
        {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2, "pad_id": PAD, **m.params(_decoder_only_model("meta"))},
    ),
    "DecoderOnlyModel": lambda m: Call(m.module(_decoder_only_model(m.device)), (m.ids(),)),
    "cached_model": lambda m: Call(
        lambda *ids, **named: functions.cached_model(*ids, **named)[0],
        (m.ids(),),
        {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2, "pad_id": PAD, **m.params(_decoder_only_model("meta"))},
    ),
    # As floats: new ids have the dtype of ids.
    "generate": lambda m: Call(
        lambda ids, **named: functions.generate(ids, **named).to(named["table"].dtype),
        (m.ids(),),
        {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2, "pad_id": PAD, "eos_id": 1, "max_new_tokens": 2}
        | m.params(_decoder_only_model("meta")),
    ),
    "gated_feed_forward": lambda m: Call(
        functions.gated_feed_forward,
        (m.real(BATCH, Q_SEQ, D_MODEL),),
        {f"w_{name}": m.real(D_MODEL, D_FF) for name in ("gate", "up")}
        | {f"b_{name}": m.real(D_FF) for name in ("gate", "up")}
        | {"w_down": m.real(D_FF, D_MODEL), "b_down": m.real(D_MODEL)},
    ),
    "encoder_layer": lambda m: Call(
        functions.encoder_layer,
        (m.real(BATCH, KV_SEQ, D_MODEL), reference.padding_mask(m.ids(), PAD)),
        {"num_heads": HEADS, "params": m.params(reference.EncoderLayer(D_MODEL, HEADS, D_FF))},
    ),
    "encoder": lambda m: Call(
        functions.encoder,
        (m.real(BATCH, KV_SEQ, D_MODEL), reference.padding_mask(m.ids(), PAD)),
        {"num_heads": HEADS, "num_layers": 1, "params": m.params(reference.Encoder(D_MODEL, HEADS, D_FF, 1))},
    ),
    "decoder_layer": lambda m: Call(
        functions.decoder_layer,
        _decoded(m),
        {"num_heads": HEADS, "params": m.params(reference.DecoderLayer(D_MODEL, HEADS, D_FF))},
    ),
    "decoder": lambda m: Call(
        functions.decoder,
        _decoded(m),
        {"num_heads": HEADS, "num_layers": 1, "params": m.params(reference.Decoder(D_MODEL, HEADS, D_FF, 1))},
    ),
    "transformer": lambda m: Call(
        functions.transformer,
        (m.ids(), m.ids(Q_SEQ)),
        {
            "num_heads": HEADS,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "pad_id": PAD,
            "params": m.params(_model(m)),
        },
    ),
    # Without the ids, which have the dtype of ids.
    "greedy_decode": lambda m: Call(
        lambda source, **keywords: tuple(functions.greedy_decode(source, **keywords))[1:], (m.ids(),), _sentences(m)
    ),
    "beam_search": lambda m: Call(
        lambda source, **keywords: tuple(
            functions.beam_search(source, **keywords, beam_size=3, top_beams=2, finish=finish).scores
            for finish in ("in_beam", "set_aside")
        ),
        (m.ids(),),
        _sentences(m),
    ),
    "output_probabilities": lambda m: Call(
        reference.output_probabilities,
        (m.real(BATCH, Q_SEQ, D_MODEL),),
        {"w_vocab": m.real(D_MODEL, VOCAB), "b_vocab": m.real(VOCAB)},
    ),
    "label_smoothing": lambda m: Call(reference.label_smoothing, (m.real(BATCH, Q_SEQ, VOCAB), 0.1)),
    "cross_entropy": lambda m: Call(reference.cross_entropy, (m.real(BATCH, KV_SEQ, VOCAB), m.ids(), PAD)),
    "kl_divergence": lambda m: Call(
        # Distributions of their own: what is drawn is negative too.
        lambda target, logits: reference.kl_divergence(reference.softmax(target), logits),
        (m.real(BATCH, Q_SEQ, VOCAB), m.real(BATCH, Q_SEQ, VOCAB)),
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
    "LayerNorm": lambda m: Call(m.module(reference.LayerNorm(D_MODEL)), (m.real(BATCH, Q_SEQ, D_MODEL),)),
    "RMSNorm": lambda m: Call(m.module(reference.RMSNorm(D_MODEL)), (m.real(BATCH, Q_SEQ, D_MODEL),)),
    "FeedForward": lambda m: Call(m.module(reference.FeedForward(D_MODEL, D_FF)), (m.real(BATCH, Q_SEQ, D_MODEL),)),
    "GatedFeedForward": lambda m: Call(
        m.module(reference.GatedFeedForward(D_MODEL, D_FF)), (m.real(BATCH, Q_SEQ, D_MODEL),)
    ),
    "EncoderLayer": lambda m: Call(
        m.module(reference.EncoderLayer(D_MODEL, HEADS, D_FF)),
        (m.real(BATCH, KV_SEQ, D_MODEL), reference.padding_mask(m.ids(), PAD)),
    ),
    "Encoder": lambda m: Call(
        m.module(reference.Encoder(D_MODEL, HEADS, D_FF, 1)),
        (m.real(BATCH, KV_SEQ, D_MODEL), reference.padding_mask(m.ids(), PAD)),
    ),
    "DecoderLayer": lambda m: Call(m.module(reference.DecoderLayer(D_MODEL, HEADS, D_FF)), _decoded(m)),
    "Decoder": lambda m: Call(m.module(reference.Decoder(D_MODEL, HEADS, D_FF, 1)), _decoded(m)),
    "Transformer": lambda m: Call(m.module(_model(m)), (m.ids(), m.ids(Q_SEQ))),
}
every_call = pytest.mark.parametrize("name", CALLS)


def test_all_is_sorted_and_holds_every_public_name():
    assert list(reference.__all__) == sorted(reference.__all__)
    defined = {
        name
        for module in ("transformer", "decoder_only", "losses", "decoding", "variants")
        for name, thing in vars(importlib.import_module(f"{reference.__name__}.{module}")).items()
        if not name.startswith("_")
        if isinstance(thing, type | FunctionType) and thing.__module__.endswith(f".{module}")
    }
    inner = {
        "ResidualLayer", "run_layers", "check_decoding", "next_logits", "attend_with_cache", "lower_repeated",
        "normalise_heads", "rms_norm",
    }  # fmt: skip
    results = {name for name in reference.__all__ if name.endswith("Result")}
    assert set(reference.__all__) == (defined - inner) | results | {
        "Dropout",
        "dropout",
        "shift_right",
        "xavier_uniform",
    }


def test_every_public_function_is_called_below():
    without_floats = {
        "causal_mask", "padding_mask", "sinusoid_table", "one_hot", "shift_right", "sliding_window_mask",
        "position_ids",
    }  # fmt: skip
    results = {name for name in reference.__all__ if name.endswith("Result")}
    # Another device draws other numbers, and a graph holds no generator: test_random.py is theirs.
    drawn = {"dropout", "Dropout", "xavier_uniform"}
    # Those of single_head_attention_step and of rotary_embedding, and what calls hand on to one another.
    inner = {"move_weights", "scale_frequencies", "Cache", "ModelState"}
    assert set(CALLS) == {*reference.__all__, *functions.__all__} - without_floats - results - drawn - inner


@pytest.mark.parametrize("name", reference.__all__)
def test_every_tensor_of_a_public_function_has_its_shape_in_the_signature(name):
    thing = getattr(reference, name)
    if inspect.isfunction(thing):
        plain = [
            p.name for p in inspect.signature(thing).parameters.values() if p.annotation in (Tensor, Tensor | None)
        ]
        assert plain == []


@pytest.mark.sample(60)
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


@pytest.mark.sample(20)
@every_call
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_runs_on_the_meta_device_with_the_same_shapes(name, dtype):
    exact = CALLS[name](Maker())()
    got = CALLS[name](Maker("meta", dtype))()

    for output, golden in zip(got, exact, strict=True):
        assert output.is_meta
        assert output.dtype == dtype
        assert output.shape == golden.shape


@pytest.mark.sample(2)
@every_call
def test_compiles_without_a_graph_break(name):
    torch.compiler.reset()
    call = CALLS[name](Maker())
    compiled = torch.compile(call.function, fullgraph=True, backend="eager")

    for output, golden in zip(call._replace(function=compiled)(), call(), strict=True):
        torch.testing.assert_close(output, golden, rtol=0, atol=0)


def test_compiles_with_sizes_that_stay_symbolic():
    torch.compiler.reset()
    compiled = torch.compile(functions.multi_head_attention, fullgraph=True, backend="eager", dynamic=True)
    parameters = _heads_parameters(m := Maker())

    for batch, q_seq, kv_seq in ((3, 5, 7), (2, 4, 9)):
        query, key, value = m.real(batch, q_seq, 17), m.real(batch, kv_seq, 19), m.real(batch, kv_seq, 23)
        mask = reference.causal_mask(q_seq, kv_seq)
        expected = functions.multi_head_attention(query, key, value, mask, **parameters)
        torch.testing.assert_close(compiled(query, key, value, mask, **parameters), expected, rtol=0, atol=0)


# The counts of the larger ones take the same path, and ten seconds.
@pytest.mark.parametrize(
    "name", ["encoder", *(pytest.param(name, marks=pytest.mark.sample(0)) for name in ("transformer", "greedy_decode"))]
)
def test_counts_of_layers_may_be_symbols_of_a_tracer(name):
    torch.compiler.reset()
    call = CALLS[name](Maker())
    adapter._SKELETONS.made.clear()  # as in a process that begins with this call
    compiled = torch.compile(call.function, fullgraph=True, backend="eager", dynamic=True)
    for output, golden in zip(call._replace(function=compiled)(), call(), strict=True):
        torch.testing.assert_close(output, golden, rtol=0, atol=0)


def test_threads_may_call_functions_of_one_structure():
    # Each thread has parameters and a head count of its own, and all have one structure.
    makers = [Maker() for _ in range(4)]
    for skip, m in enumerate(makers):
        m.real(1 + skip)
    calls = [CALLS["encoder_layer"](m) for m in makers]
    alone = [call() for call in calls]
    with ThreadPoolExecutor(len(calls)) as pool:
        for _ in range(20):
            together = list(pool.map(lambda call: call(), calls))
            for got, expected in zip(together, alone, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


class Pipeline(nn.Module):
    """The components that make tensors of the length of their input."""

    def forward(self, x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
        placed = functions.positional_encoding(x[None])[0]
        output: Tensor = functions.single_head_attention(placed, w_q=w_q, w_k=w_k, w_v=w_v, causal=True).output
        return output


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
        (reference.one_hot, (torch.tensor([[4, 0, 0], [1, 2, 0]]), VOCAB)),
        (reference.shift_right, (torch.tensor([[4, 0, 0], [1, 2, 0]]), 28)),
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


@pytest.mark.sample(12)
@every_call
def test_gradients_agree_with_finite_differences(name):
    call = CALLS[name](m := Maker())
    # Whatever the call holds, its module's parameters included.
    parameters = list(call.function.parameters()) if isinstance(call.function, nn.Module) else []
    given = (*call.arguments, *call.keywords.values(), *call.keywords.get("params", {}).values())
    leaves = [t for t in m.drawn if any(t is a for a in given)]
    for leaf in leaves:
        leaf.requires_grad_()

    def flat(*_: Tensor) -> Tensor:
        return torch.cat([output.flatten() for output in call()])

    # fast_mode compares one random projection of the Jacobian: enough to notice any wrong entry.
    assert torch.autograd.gradcheck(flat, (*leaves, *parameters), fast_mode=True)


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


@every_call
def test_a_call_draws_no_random_numbers_of_pytorch(name):
    call = CALLS[name](Maker())
    state = torch.get_rng_state()
    call()

    assert torch.equal(torch.get_rng_state(), state)
