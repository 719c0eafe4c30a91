"""Refusals of the reference: every message names the argument, what it was, what it must be and what to do."""

# mypy: disable-error-code="arg-type"

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from goldformer.reference_impl import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    FusedMultiHeadAttention,
    LayerNorm,
    MultiHeadAttention,
    SingleHeadAttention,
    Transformer,
    attention_scores,
    causal_mask,
    cross_entropy,
    cut_fused,
    dropout,
    kl_divergence,
    label_smoothing,
    log_softmax,
    merge_heads,
    one_hot,
    pad_or_truncate,
    padding_mask,
    positional_encoding,
    scaled_scores,
    shapes,
    shift_right,
    sinusoid_table,
    softmax,
    split_heads,
    token_embedding,
    xavier_uniform,
)
from reference_functions import (
    beam_search,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    feed_forward,
    fused_multi_head_attention,
    greedy_decode,
    layer_norm,
    multi_head_attention,
    output_probabilities,
    scaled_dot_product_attention,
    single_head_attention,
    single_head_attention_step,
    transformer,
)

SIZES = (14, 2, 23)
IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0], [9, 0, 0, 0, 0]])
NOT_READ = "and must hold nothing that is not read: leave it out, or fix its spelling or the number of layers"
TABLE = "the rows of table: use the vocabulary that the table was made for, or a longer table"


def real(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def true(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def refused(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def model() -> Transformer:
    return Transformer(29, *SIZES[:2], 1, 2, SIZES[2], pad_id=0)


# Calls that are accepted, and refused with one argument changed


def attend(**changed: Any) -> Any:
    arguments = {"query": real(3, 5, 11), "key": real(3, 7, 11), "value": real(3, 7, 13)}
    return scaled_dot_product_attention(**{**arguments, **changed})


def attend_with_heads(**changed: Any) -> Any:
    arguments = {
        "query": real(3, 5, 17),
        "key": real(3, 7, 19),
        "value": real(3, 7, 23),
        "num_heads": 2,
        "w_q": real(17, 14),
        "w_k": real(19, 14),
        "w_v": real(23, 26),
        "w_o": real(26, 29),
    }
    return multi_head_attention(**{**arguments, **changed})


def attend_fused(**changed: Any) -> Any:
    arguments = {"x": real(3, 5, 17), "num_heads": 2, "w_qkv": real(17, 42), "w_o": real(14, 14)}
    return fused_multi_head_attention(**{**arguments, **changed})


def attend_alone(**changed: Any) -> Any:
    arguments = {"x": real(5, 2), "w_q": real(2, 2), "w_k": real(2, 2), "w_v": real(2, 2), "causal": True}
    return single_head_attention(**{**arguments, **changed})


def train_alone(**changed: Any) -> Any:
    arguments = {
        "x": real(5, 2),
        "output_gradient": real(5, 2),
        "w_q": real(2, 2),
        "w_k": real(2, 2),
        "w_v": real(2, 2),
    }
    return single_head_attention_step(**{**arguments, "causal": True, "learning_rate": 0.1, "steps": 1, **changed})


def call(function: Callable[..., Any], module: torch.nn.Module, given: dict[str, Any], **changed: Any) -> Any:
    """Call with zeros, but for what is changed; what is named with a dot is a parameter, and None leaves it out."""
    params = dict(module.state_dict())
    for name in [name for name in changed if "." in name or name in ("table", "w_vocab", "b_vocab")]:
        value = changed.pop(name)
        params = {n: t for n, t in params.items() if n != name} | ({} if value is None else {name: value})
    return function(**{"num_heads": 2, "params": params, **given, **changed})


def encode_layer(**changed: Any) -> Any:
    return call(encoder_layer, EncoderLayer(*SIZES), {"x": real(3, 5, 14)}, **changed)


def encode(**changed: Any) -> Any:
    return call(encoder, Encoder(*SIZES, 2), {"x": real(3, 5, 14), "num_layers": 2}, **changed)


def decode_layer(**changed: Any) -> Any:
    given = {"x": real(3, 5, 14), "memory": real(3, 7, 14)}
    return call(decoder_layer, DecoderLayer(*SIZES), given, **changed)


def decode(**changed: Any) -> Any:
    given = {"x": real(3, 5, 14), "memory": real(3, 7, 14), "num_layers": 2}
    return call(decoder, Decoder(*SIZES, 2), given, **changed)


def translate(**changed: Any) -> Any:
    given = {"source": IDS, "target": IDS[:, :4], "num_encoder_layers": 1, "num_decoder_layers": 2, "pad_id": 0}
    return call(transformer, model(), given, **changed)


def feed(**changed: Any) -> Any:
    given = {"x": real(3, 5, 14), "w_1": real(14, 23), "w_2": real(23, 14)}
    return feed_forward(**{**given, **changed})


def normalise(**changed: Any) -> Any:
    return layer_norm(**{"x": real(3, 14), "gamma": real(14), "beta": real(14), **changed})


def lose(**changed: Any) -> Any:
    return cross_entropy(**{"logits": real(3, 5, 29), "targets": IDS, "pad_id": 0, **changed})


def test_the_calls_below_are_accepted_unchanged():
    for accepted in (
        attend, attend_with_heads, attend_fused, attend_alone, train_alone, encode_layer, encode, decode_layer, decode,
        translate, feed, normalise, lose,
    ):  # fmt: skip
        accepted()


@pytest.mark.parametrize(
    "function",
    [attend_with_heads, attend_fused, attend_alone, feed, normalise, encode_layer, encode, decode_layer, decode],
)
def test_arguments_are_checked_once(function, monkeypatch):
    calls, run = [], shapes._CallCheck.run

    def counting(self):
        calls.append(self)
        run(self)

    monkeypatch.setattr(shapes._CallCheck, "run", counting)
    function()
    assert len(calls) == 1


def test_a_refused_call_leaves_later_calls_checked():
    for _ in range(2):
        with pytest.raises(TypeError, match="mask has dtype"):
            attend_with_heads(mask=torch.ones(5, 7))
    with pytest.raises(IndexError, match="table"):
        model()(IDS + 29, IDS)
    with pytest.raises(TypeError, match="scores has dtype"):
        softmax(torch.tensor([1, 2]))


# The refusals


def misfit(name: str, shape: tuple[int, ...], axes: str, size: str, owner: str) -> ValueError:
    hint = " (weights are (in, out): transpose those of nn.Linear)" if name.rpartition(".")[2].startswith("w_") else ""
    must = f"must be ({axes}) with {size} as in {owner}"
    return ValueError(f"{name} has shape {shape} and {must}: make the two agree{hint}")


def misshapen(name: str, shape: tuple[int, ...], axes: str) -> ValueError:
    count = len(axes.replace("..., ", "").split())
    number = f"{'at least ' if '...' in axes else ''}{count} {'axis' if count == 1 else 'axes'}"
    return ValueError(f"{name} has shape {shape} and must be ({axes}): reshape it to {number}")


def empty(name: str, shape: tuple[int, ...], axes: str) -> ValueError:
    fix = "leave empty batches and sequences out"
    return ValueError(f"{name} has shape {shape} and must be ({axes}) without an empty axis: {fix}")


def unbroadcast(name: str, shape: tuple[int, ...], axes: str, scores: tuple[int, ...]) -> ValueError:
    fix = f"give it size 1 on the axes it repeats along, such as {name}[:, None] for all heads of a sample"
    return ValueError(f"{name} has shape {shape} and must broadcast to the scores, ({axes}) = {scores}: {fix}")


def elsewhere(name: str, device: str, other: str, other_device: str) -> ValueError:
    must = f"must be on the device of {other}, {other_device}"
    return ValueError(f"{name} is on {device} and {must}: move it with {name}.to('{other_device}')")


def indivisible(num_heads: int, width: int, of: str) -> ValueError:
    return ValueError(f"num_heads={num_heads} does not divide the width {width} of {of}: choose a divisor of {width}")


def too_small(name: str, value: int) -> ValueError:
    return ValueError(f"{name}={value} must be at least 1: pass a positive size")


def no_fraction(name: str, value: str) -> ValueError:
    return ValueError(f"{name}={value} must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent")


def integral(name: str, dtype: str) -> TypeError:
    return TypeError(f"{name} has dtype torch.{dtype} and must be floating point: convert it with {name}.float()")


def mixed(name: str, dtype: str, other: str, other_dtype: str) -> TypeError:
    must = f"must have that of {other}, torch.{other_dtype}"
    return TypeError(f"{name} has dtype torch.{dtype} and {must}: convert it with {name}.to(torch.{other_dtype})")


def no_mask(name: str, dtype: str) -> TypeError:
    fix = f"a mask of ones and zeros with {name} != 0, an additive mask of 0 and -inf with {name} == 0"
    return TypeError(f"{name} has dtype torch.{dtype} and must be torch.bool, True = may attend: convert {fix}")


def no_ids(name: str, dtype: str) -> TypeError:
    must = f"must be torch.int64 or torch.int32: convert it with {name}.long()"
    return TypeError(f"{name} has dtype torch.{dtype} and {must}")


def no_tensor(name: str, kind: str) -> TypeError:
    fix = "it cannot be left out" if kind == "NoneType" else f"convert it with torch.as_tensor({name})"
    return TypeError(f"{name} is of type {kind} and must be a torch.Tensor: {fix}")


def no_int(name: str, value: Any) -> TypeError:
    return TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be an int: pass int({name})")


def no_float(name: str, value: Any) -> TypeError:
    return TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be a float: pass float({name})")


def no_bool(name: str, value: Any) -> TypeError:
    return TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be a bool: pass True or False")


# Arguments that are changed, and the refusal; a call without changes is wrong as it stands
# fmt: off
REFUSALS: list[tuple[Callable[..., Any], dict[str, Any], Exception]] = [
    (attend, {"query": real(5, 11)}, misfit("key", (3, 7, 11), "..., kv_seq, d_k", "...=()", "query")),
    (attend, {"query": real(11)}, misshapen("query", (11,), "..., q_seq, d_k")),
    (attend, {"key": real(2, 7, 11)}, misfit("key", (2, 7, 11), "..., kv_seq, d_k", "...=(3,)", "query")),
    (attend, {"key": real(3, 7, 12)}, misfit("key", (3, 7, 12), "..., kv_seq, d_k", "d_k=11", "query")),
    (attend, {"value": real(3, 6, 13)}, misfit("value", (3, 6, 13), "..., kv_seq, d_v", "kv_seq=7", "key")),
    (attend, {"key": real(3, 0, 11), "value": real(3, 0, 13)}, empty("key", (3, 0, 11), "..., kv_seq, d_k")),
    (attend, {"mask": torch.ones(7, 5, dtype=torch.bool)},
     unbroadcast("mask", (7, 5), "..., q_seq, kv_seq", (3, 5, 7))),
    (attend, {"mask": torch.ones(1, 3, 5, 7, dtype=torch.bool)},
     unbroadcast("mask", (1, 3, 5, 7), "..., q_seq, kv_seq", (3, 5, 7))),
    (attend_with_heads, {"num_heads": 4}, indivisible(4, 14, "w_q")),
    (attend_with_heads, {"num_heads": 7}, indivisible(7, 26, "w_v")),
    (attend_with_heads, {"num_heads": 0}, too_small("num_heads", 0)),
    (attend_with_heads, {"query": real(5, 17)}, misshapen("query", (5, 17), "batch, q_seq, d_query")),
    (attend_with_heads, {"key": real(1, 7, 19)}, misfit("key", (1, 7, 19), "batch, kv_seq, d_key", "batch=3", "query")),
    (attend_with_heads, {"w_q": real(14, 17)}, misfit("w_q", (14, 17), "d_query, heads*d_k", "d_query=17", "query")),
    (attend_with_heads, {"w_k": real(19, 16)}, misfit("w_k", (19, 16), "d_key, heads*d_k", "heads*d_k=14", "w_q")),
    (attend_with_heads, {"w_v": real(22, 26)}, misfit("w_v", (22, 26), "d_value, heads*d_v", "d_value=23", "value")),
    (attend_with_heads, {"w_o": real(29, 26)}, misfit("w_o", (29, 26), "heads*d_v, d_model", "heads*d_v=26", "w_v")),
    (attend_with_heads, {"b_k": real(1)}, misfit("b_k", (1,), "heads*d_k", "heads*d_k=14", "w_q")),
    (attend_with_heads, {"b_o": real(1, 29)}, misshapen("b_o", (1, 29), "d_model")),
    (attend_with_heads, {"mask": torch.ones(3, 5, 7, dtype=torch.bool)},
     unbroadcast("mask", (3, 5, 7), "batch, heads, q_seq, kv_seq", (3, 2, 5, 7))),
    (attend_fused, {"num_heads": 4}, indivisible(4, 14, "w_o")),
    (attend_fused, {"w_qkv": real(17, 43)},
     ValueError("w_qkv has shape (17, 43) and must have 42 columns, three times the width 14 of w_o: lay q, k and v "
                "of every head side by side")),
    (attend_fused, {"w_o": real(14, 17)}, misfit("w_o", (14, 17), "heads*d_k, heads*d_k", "heads*d_k=14", "w_o")),
    (attend_fused, {"b_qkv": real(14)}, misfit("b_qkv", (14,), "3*heads*d_k", "3*heads*d_k=42", "w_qkv")),
    (attend_fused, {"x": real(3, 5, 14)}, misfit("w_qkv", (17, 42), "d_input, 3*heads*d_k", "d_input=14", "x")),
    (lambda: cut_fused(real(3, 5, 42), 4), {},
     ValueError("qkv has shape (3, 5, 42) and its columns must be a multiple of 12: lay q, k and v of 4 heads side "
                "by side, all of one width")),
    (attend_alone, {"w_k": real(2, 3)}, misfit("w_k", (2, 3), "d_model, d_model", "d_model=2", "x")),
    (attend_alone, {"w_v": real(3, 2)}, misfit("w_v", (3, 2), "d_model, d_model", "d_model=2", "x")),
    (attend_alone, {"x": real(1, 5, 2)}, misshapen("x", (1, 5, 2), "seq, d_model")),
    (train_alone, {"output_gradient": real(1, 2)}, misfit("output_gradient", (1, 2), "seq, d_model", "seq=5", "x")),
    (train_alone, {"steps": 0}, too_small("steps", 0)),
    (train_alone, {"learning_rate": -0.1},
     ValueError("learning_rate=-0.1 must be finite and at least 0: pass a small number such as 0.01")),
    (train_alone, {"learning_rate": float("nan")},
     ValueError("learning_rate=nan must be finite and at least 0: pass a small number such as 0.01")),
    (lambda: softmax(real()), {}, misshapen("scores", (), "..., n")),
    (lambda: softmax(real(3, 0)), {}, empty("scores", (3, 0), "..., n")),
    (lambda: attention_scores(real(5, 11), real(7, 12)), {},
     misfit("key", (7, 12), "..., kv_seq, d_k", "d_k=11", "query")),
    (lambda: scaled_scores(real(5, 0), real(7, 0)), {}, empty("query", (5, 0), "..., q_seq, d_k")),
    (lambda: causal_mask(0, 5), {}, too_small("q_seq", 0)),
    (lambda: causal_mask(5, -1), {}, too_small("kv_seq", -1)),
    (lambda: padding_mask(torch.tensor([1, 0]), 0), {}, misshapen("ids", (2,), "batch, seq")),
    (lambda: padding_mask(torch.ones(3, 0, dtype=torch.int64), 0), {}, empty("ids", (3, 0), "batch, seq")),
    (lambda: padding_mask(torch.ones(1, 2, dtype=torch.int32), 2**32 + 1), {},
     ValueError("pad_id=4294967297 must fit ids of torch.int32, -2147483648 … 2147483647: pass the id that pads "
                "these ids, or convert them with ids.long()")),
    (lambda: token_embedding(torch.tensor([0, 1]), real(4, 3)), {}, misshapen("ids", (2,), "batch, seq")),
    (lambda: token_embedding(torch.tensor([[0, 1]]), real(4)), {}, misshapen("table", (4,), "vocab, d_model")),
    (lambda: token_embedding(torch.tensor([[0, 1]]), real(4, 3, device="meta")), {},
     elsewhere("ids", "cpu", "table", "meta")),
    (lambda: sinusoid_table(0, 4), {}, too_small("seq", 0)),
    (lambda: sinusoid_table(4, -2), {}, too_small("d_model", -2)),
    (lambda: positional_encoding(real(5, 14)), {}, misshapen("x", (5, 14), "batch, seq, d_model")),
    (lambda: split_heads(real(3, 5, 14), 4), {}, indivisible(4, 14, "x")),
    (lambda: merge_heads(real(3, 5, 14)), {}, misshapen("x", (3, 5, 14), "batch, heads, seq, d")),
    (attend, {"key": real(3, 7, 11, device="meta")}, elsewhere("key", "meta", "query", "cpu")),
    (attend, {"mask": torch.ones(5, 7, dtype=torch.bool, device="meta")}, elsewhere("mask", "meta", "query", "cpu")),
    (lambda: MultiHeadAttention(14, 4), {}, indivisible(4, 14, "the model, d_model")),
    (lambda: MultiHeadAttention(0, 1), {}, too_small("d_model", 0)),
    (lambda: MultiHeadAttention(14, 0), {}, too_small("num_heads", 0)),
    (lambda: MultiHeadAttention(14, 2, d_key=0), {}, too_small("d_key", 0)),
    (lambda: MultiHeadAttention(14, 2, d_value=-1), {}, too_small("d_value", -1)),
    (lambda: FusedMultiHeadAttention(17, 14, 4), {}, indivisible(4, 14, "the model, d_model")),
    (lambda: FusedMultiHeadAttention(0, 14, 2), {}, too_small("d_input", 0)),
    (lambda: FusedMultiHeadAttention(17, 0, 2), {}, too_small("d_model", 0)),
    (lambda: SingleHeadAttention(0), {}, too_small("d_model", 0)),
    (lambda: Transformer(0, 14, 2, 1, 1, 23, pad_id=0), {}, too_small("vocab", 0)),
    (lambda: Transformer(29, -14, 2, 1, 1, 23, pad_id=0), {}, too_small("d_model", -14)),
    (feed, {"w_1": real(23, 14)}, misfit("w_1", (23, 14), "d_model, d_ff", "d_model=14", "x")),
    (feed, {"w_2": real(23, 15)}, misfit("w_2", (23, 15), "d_ff, d_model", "d_model=14", "x")),
    (feed, {"b_1": real(14)}, misfit("b_1", (14,), "d_ff", "d_ff=23", "w_1")),
    (feed, {"x": real(5, 14)}, misshapen("x", (5, 14), "batch, seq, d_model")),
    (normalise, {"gamma": real(13)}, misfit("gamma", (13,), "d_model", "d_model=14", "x")),
    (normalise, {"beta": real(1, 14)}, misshapen("beta", (1, 14), "d_model")),
    (normalise, {"eps": 0}, ValueError("eps=0 must be finite and above 0: pass a small number such as 1e-5")),
    (normalise, {"eps": float("nan")},
     ValueError("eps=nan must be finite and above 0: pass a small number such as 1e-5")),
    (encode_layer, {"x": real(5, 14)}, misshapen("x", (5, 14), "batch, seq, d_model")),
    (encode_layer, {"self_attention.w_k": real(14, 12)},
     misfit("self_attention.w_k", (14, 12), "d_model, heads*d_k", "heads*d_k=14", "self_attention.w_q")),
    (encode_layer, {"feed_forward.w_1": real(23, 14)},
     misfit("feed_forward.w_1", (23, 14), "d_model, d_ff", "d_model=14", "x")),
    (encode_layer, {"norm_2.gamma": real(1)}, misfit("norm_2.gamma", (1,), "d_model", "d_model=14", "x")),
    (encode_layer, {"num_heads": 3}, indivisible(3, 14, "self_attention.w_q")),
    (encode_layer, {"mask": true(3, 5, 5)}, unbroadcast("mask", (3, 5, 5), "batch, heads, seq, seq", (3, 2, 5, 5))),
    (encode, {"num_layers": 0}, too_small("num_layers", 0)),
    (encode, {"encoder.1.norm_1.beta": real(15)}, misfit("encoder.1.norm_1.beta", (15,), "d_model", "d_model=14", "x")),
    (decode_layer, {"memory": real(2, 7, 14)},
     misfit("memory", (2, 7, 14), "batch, source_seq, d_model", "batch=3", "x")),
    (decode_layer, {"memory": real(3, 7, 13)},
     misfit("memory", (3, 7, 13), "batch, source_seq, d_model", "d_model=14", "x")),
    (decode_layer, {"memory": real(3, 0, 14)}, empty("memory", (3, 0, 14), "batch, source_seq, d_model")),
    (decode_layer, {"self_mask": true(5, 7)}, unbroadcast("self_mask", (5, 7), "batch, heads, seq, seq", (3, 2, 5, 5))),
    (decode_layer, {"memory_mask": true(5, 5)},
     unbroadcast("memory_mask", (5, 5), "batch, heads, seq, source_seq", (3, 2, 5, 7))),
    (decode, {"decoder.0.cross_attention.w_o": real(13, 14)},
     misfit("decoder.0.cross_attention.w_o", (13, 14), "heads*d_v, d_model", "heads*d_v=14",
            "decoder.0.cross_attention.w_v")),
    (translate, {"target": IDS[:2]}, misfit("target", (2, 5), "batch, seq", "batch=3", "source")),
    (translate, {"source": IDS[0]}, misshapen("source", (5,), "batch, source_seq")),
    (translate, {"w_vocab": real(29, 14)}, misfit("w_vocab", (29, 14), "d_model, vocab", "d_model=14", "table")),
    (translate, {"b_vocab": real(14)}, misfit("b_vocab", (14,), "vocab", "vocab=29", "table")),
    (translate, {"encoder.0.self_attention.w_q": real(12, 14)},
     misfit("encoder.0.self_attention.w_q", (12, 14), "d_model, heads*d_k", "d_model=14", "table")),
    (translate, {"num_encoder_layers": 0}, too_small("num_encoder_layers", 0)),
    (translate, {"source": IDS.int(), "pad_id": 2**31},
     ValueError("pad_id=2147483648 must fit source of torch.int32, -2147483648 … 2147483647: pass the id that pads "
                "the source, or convert them with source.long()")),
    (translate, {"target": IDS.to("meta")}, elsewhere("target", "meta", "table", "cpu")),
    (lose, {"targets": IDS[:, :4]}, misfit("targets", (3, 4), "batch, seq", "seq=5", "logits")),
    (lose, {"logits": real(5, 29)}, misshapen("logits", (5, 29), "batch, seq, vocab")),
    (lose, {"targets": torch.zeros(3, 5, dtype=torch.int64)},
     ValueError("targets hold nothing but pad_id=0 and must hold a word, or there is nothing to average: leave "
                "batches of padding out")),
    (lambda: log_softmax(real(3, 0)), {}, empty("scores", (3, 0), "..., n")),
    (lambda: pad_or_truncate(real(3, 5, 14), 0), {}, too_small("length", 0)),
    (lambda: pad_or_truncate(real(5, 14), 3), {}, misshapen("x", (5, 14), "batch, seq, d_model")),
    (lambda: shift_right(IDS[0], 1), {}, misshapen("ids", (5,), "batch, seq")),
    (lambda: shift_right(IDS.int(), -(2**31) - 1), {},
     ValueError("bos_id=-2147483649 must fit ids of torch.int32, -2147483648 … 2147483647: pass the id that begins "
                "these ids, or convert them with ids.long()")),
    (lambda: output_probabilities(real(3, 5, 14), params={"w_vocab": real(29, 14)}), {},
     misfit("w_vocab", (29, 14), "d_model, vocab", "d_model=14", "x")),
    (lambda: output_probabilities(real(3, 5, 14), params={"w_vocab": real(14, 29), "b_vocab": real(28)}), {},
     misfit("b_vocab", (28,), "vocab", "vocab=29", "w_vocab")),
    (lambda: one_hot(IDS, 0), {}, too_small("vocab", 0)),
    (lambda: label_smoothing(real(3, 5, 29), 1.1), {}, no_fraction("smoothing", "1.1")),
    (lambda: label_smoothing(real(3, 5, 29), float("nan")), {}, no_fraction("smoothing", "nan")),
    (lambda: kl_divergence(real(3, 29), real(3, 28)), {}, misfit("logits", (3, 28), "..., n", "n=29", "target")),
    (lambda: FeedForward(14, 23, dropout=-0.1), {}, no_fraction("dropout", "-0.1")),
    (lambda: LayerNorm(14, 0.0), {},
     ValueError("eps=0.0 must be finite and above 0: pass a small number such as 1e-5")),
    (lambda: EncoderLayer(14, 4, 23), {}, indivisible(4, 14, "the model, d_model")),
    (lambda: Transformer(29, 14, 2, 1, -1, 23, pad_id=0), {}, too_small("num_decoder_layers", -1)),
    (lambda: EncoderLayer(*SIZES)(real(3, 5, 13)), {},
     misfit("x", (3, 5, 13), "batch, seq, d_model", "d_model=14", "the module")),
    (lambda: Decoder(*SIZES, 2)(real(3, 5, 14), real(3, 7, 13)), {},
     misfit("memory", (3, 7, 13), "batch, source_seq, d_model", "d_model=14", "the module")),
    (lambda: DecoderLayer(*SIZES)(real(3, 5, 14), real(3, 7, 14), memory_mask=true(3, 5, 7)), {},
     unbroadcast("memory_mask", (3, 5, 7), "batch, heads, seq, source_seq", (3, 2, 5, 7))),
    (lambda: model().decode(IDS, real(3, 6, 14), IDS), {},
     misfit("memory", (3, 6, 14), "batch, source_seq, d_model", "source_seq=5", "source")),
    (lambda: model().decode(IDS, real(3, 5, 15), IDS), {},
     misfit("memory", (3, 5, 15), "batch, source_seq, d_model", "d_model=14", "table")),
    (lambda: EncoderLayer(*SIZES).self_attention(*[real(3, 5, 14)] * 3, torch.ones(5, 5)), {},
     no_mask("mask", "float32")),
    (lambda: model().get_submodule("decoder.1.feed_forward")(IDS), {}, integral("x", "int64")),
    (attend, {"mask": torch.ones(5, 7)}, no_mask("mask", "float32")),
    (attend_with_heads, {"mask": torch.ones(5, 7).long()}, no_mask("mask", "int64")),
    (attend_fused, {"mask": torch.ones(5, 5).byte()}, no_mask("mask", "uint8")),
    (attend, {"mask": [[True]]}, no_tensor("mask", "list")),
    (lambda: softmax(np.zeros(3)), {}, no_tensor("scores", "ndarray")),
    (lambda: softmax(torch.tensor([1, 2])), {}, integral("scores", "int64")),
    (attend, {"value": real(3, 7, 13, dtype=torch.float64)}, mixed("value", "float64", "query", "float32")),
    (attend_with_heads, {"b_v": real(26, dtype=torch.float16)}, mixed("b_v", "float16", "query", "float32")),
    (attend_alone, {"w_v": None}, no_tensor("w_v", "NoneType")),
    (attend_alone, {"causal": 1}, no_bool("causal", 1)),
    (lambda: SingleHeadAttention(2, causal="yes"), {}, no_bool("causal", "yes")),
    (attend_with_heads, {"num_heads": 2.0}, no_int("num_heads", 2.0)),
    (lambda: MultiHeadAttention(14, True), {}, no_int("num_heads", True)),
    (lambda: causal_mask("5", 5), {}, no_int("q_seq", "5")),
    (lambda: sinusoid_table(5, 4.0), {}, no_int("d_model", 4.0)),
    (lambda: sinusoid_table(5, 4, dtype=torch.int64), {},
     TypeError("dtype=torch.int64 must be a floating-point torch.dtype: pass torch.float32")),
    (lambda: sinusoid_table(5, 4, dtype=float), {},
     TypeError("dtype=<class 'float'> must be a floating-point torch.dtype: pass torch.float32")),
    (lambda: positional_encoding(torch.ones(3, 5, 14).long()), {}, integral("x", "int64")),
    (lambda: padding_mask(real(3, 5), 0), {}, no_ids("ids", "float32")),
    (lambda: padding_mask(torch.ones(3, 5).long(), None), {}, no_int("pad_id", None)),
    (lambda: token_embedding(torch.ones(3, 5, dtype=torch.uint8), real(4, 3)), {}, no_ids("ids", "uint8")),
    (lambda: token_embedding([[1]], real(4, 3)), {}, no_tensor("ids", "list")),
    (lambda: token_embedding(torch.tensor([[1]]), torch.tensor([[1, 2]])), {}, integral("table", "int64")),
    (encode_layer, {"mask": torch.ones(5, 5)}, no_mask("mask", "float32")),
    (decode_layer, {"self_mask": torch.ones(5, 5).long()}, no_mask("self_mask", "int64")),
    (encode_layer, {"norm_1.gamma": None}, no_tensor("norm_1.gamma", "NoneType")),
    (translate, {"table": None}, no_tensor("table", "NoneType")),
    (decode, {"num_layers": 3}, no_tensor("decoder.2.self_attention.w_q", "NoneType")),
    (encode, {"num_layers": 1}, TypeError(f"params has 'encoder.1.self_attention.w_q' {NOT_READ}")),
    (encode_layer, {"norm_3.gamma": real(14)}, TypeError(f"params has 'norm_3.gamma' {NOT_READ}")),
    (translate, {"encoder.0.self_attention.q": real(14)},
     TypeError(f"params has 'encoder.0.self_attention.q' {NOT_READ}")),
    (encode_layer, {"params": [real(14)]},
     TypeError("params is of type list and must map names to tensors: pass a dict, such as the state_dict of the "
               "module")),
    (encode_layer, {"feed_forward.b_2": real(14, dtype=torch.float64)},
     mixed("feed_forward.b_2", "float64", "x", "float32")),
    (decode_layer, {"memory": real(3, 7, 14, dtype=torch.float64)}, mixed("memory", "float64", "x", "float32")),
    (translate, {"norm_first": "pre"}, no_bool("norm_first", "pre")),
    (encode_layer, {"num_heads": 2.0}, no_int("num_heads", 2.0)),
    (translate, {"pad_id": None}, no_int("pad_id", None)),
    (translate, {"source": IDS.float()}, no_ids("source", "float32")),
    (translate, {"target": [[1]]}, no_tensor("target", "list")),
    (lose, {"logits": IDS}, integral("logits", "int64")),
    (lose, {"targets": IDS.float()}, no_ids("targets", "float32")),
    (normalise, {"eps": "1e-5"}, no_float("eps", "1e-5")),
    (normalise, {"eps": True}, no_float("eps", True)),
    (feed, {"w_2": None}, no_tensor("w_2", "NoneType")),
    (lambda: label_smoothing(one_hot(IDS, 29), 0.1), {}, integral("target", "int64")),
    (lambda: label_smoothing(real(3, 5, 29), "0.1"), {}, no_float("smoothing", "0.1")),
    (lambda: one_hot(IDS.float(), 29), {}, no_ids("ids", "float32")),
    (lambda: pad_or_truncate(real(3, 5, 14), 4.0), {}, no_int("length", 4.0)),
    (lambda: shift_right(IDS, "1"), {}, no_int("bos_id", "1")),
    (lambda: kl_divergence(real(3, 29).double(), real(3, 29)), {}, mixed("logits", "float32", "target", "float64")),
    (lambda: DecoderLayer(*SIZES, norm_first=None), {}, no_bool("norm_first", None)),
    (lambda: EncoderLayer(*SIZES, dropout=None), {}, no_float("dropout", None)),
    (lambda: Transformer(29, 14, 2, 1, 1, 23, pad_id="<pad>"), {}, no_int("pad_id", "<pad>")),
    (lambda: model().decode(IDS, real(3, 5, 14, dtype=torch.float64), IDS), {},
     mixed("memory", "float64", "table", "float32")),
    (lambda: xavier_uniform(real(2, 3)[0], 1), {}, misshapen("like", (3,), "d_in, d_out")),
    (lambda: xavier_uniform(real(2, 3)[:0], 1), {}, empty("like", (0, 3), "d_in, d_out")),
    (lambda: xavier_uniform(real(2, 3).int(), 1), {}, integral("like", "int32")),
    (lambda: xavier_uniform(real(2, 3), None), {}, no_int("seed", None)),
    (lambda: xavier_uniform(real(2, 3), -1), {}, ValueError("seed=-1 must be at least 0: pass any number that is")),
    (lambda: dropout(real(2, 3), rate=-0.1, training=True, seed=1), {}, no_fraction("rate", "-0.1")),
    (lambda: dropout(real(2, 3), rate=1.5, training=False, seed=1), {}, no_fraction("rate", "1.5")),
    (lambda: dropout(real(2, 3), rate=float("nan"), training=True, seed=1), {}, no_fraction("rate", "nan")),
    (lambda: dropout(real(2, 3), rate=0.1, training=1, seed=1), {}, no_bool("training", 1)),
    (lambda: dropout(real(2, 3), rate=0.1, training=True, seed=1.0), {}, no_int("seed", 1.0)),
    (lambda: dropout(real(2, 3)[..., :0], rate=0.1, training=True, seed=1), {}, empty("x", (2, 0), "..., n")),
    (lambda: attend(dropout_rate=1.5, seed=1), {}, no_fraction("dropout_rate", "1.5")),
    (attend, {"dropout_rate": 0.5}, no_int("seed", None)),
]
# fmt: on


@pytest.mark.parametrize(("function", "changed", "error"), REFUSALS)
def test_arguments_that_do_not_fit_are_refused(function, changed, error):
    with refused(type(error), str(error)):
        function(**changed)


@pytest.mark.parametrize(
    "make",
    [
        lambda **named: MultiHeadAttention(14, 2, bias=False, **named),
        lambda **named: EncoderLayer(*SIZES, **named),
        lambda **named: Decoder(*SIZES, 2, **named),
        lambda **named: Transformer(29, 14, 2, 1, 1, 23, pad_id=0, **named),
    ],
)
def test_a_keyword_that_nothing_reads_is_refused(make):
    with pytest.raises(TypeError, match="unexpected keyword argument 'dropuot'"):
        make(dropuot=0.2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("wrong", "position"), [(29, [1, 2]), (10**6, [0, 0]), (-1, [1, 0]), (-29, [0, 3])])
def test_the_first_id_outside_the_table_is_named(wrong, position, dtype):
    ids = torch.tensor([[0, 28, 3, 4], [5, 6, 7, 8]], dtype=dtype)
    ids[tuple(position)] = wrong
    ids[1, 3] = 30

    message = f"ids{position}={wrong} must lie in 0 … 28, {TABLE}"
    with refused(IndexError, message):
        token_embedding(ids, real(29, 2))


@pytest.mark.parametrize(("wrong", "position"), [(29, [0, 1]), (-1, [2, 0])])
def test_the_first_id_outside_the_vocabulary_is_named(wrong, position):
    ids = IDS.clone()
    ids[tuple(position)] = wrong
    outside = f"{position}={wrong} must lie in 0 … 28"

    for name in ("source", "target"):
        with refused(IndexError, f"{name}{outside}, {TABLE}"):
            translate(**{name: ids})
        with refused(IndexError, f"{name}{outside}, {TABLE}"):
            model()(**{"source": IDS, "target": IDS, name: ids})
    words = "the words: use the vocabulary that the ids were made with, or a larger vocab"
    with refused(IndexError, f"ids{outside}, {words}"):
        one_hot(ids, 29)
    words = "the words of logits: use the vocabulary of the model, or the pad_id that pads these targets"
    with refused(IndexError, f"targets{outside}, {words}"):
        lose(targets=ids)
    # Unless it is what pads.
    assert lose(targets=ids, pad_id=wrong)[0].isfinite()


# Decoding

WORDS = {"bos_id": 1, "eos_id": 2, "max_length": 3}
BEAMS = {"beam_size": 3, "top_beams": 2}
OF_BEAMS = ("beam_size", "top_beams", "finish", "length_penalty")


def write_sentences(decoding: Callable[..., Any], changed: dict[str, Any]) -> Any:
    counts = {"num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2, "pad_id": 0}
    beams = BEAMS if decoding is beam_search else {}
    return decoding(**{"source": IDS, **counts, **WORDS, **beams, "params": model().state_dict(), **changed})


def refused_by_both(error: type[Exception], message: str, changed: dict[str, Any]) -> None:
    for decoding in (beam_search,) if set(changed) & set(OF_BEAMS) else (greedy_decode, beam_search):
        with refused(error, message):
            write_sentences(decoding, changed)


@pytest.mark.parametrize("decoding", [greedy_decode, beam_search])
def test_decoding_is_accepted_unchanged(decoding):
    write_sentences(decoding, {})


# fmt: off
DECODING_REFUSALS: list[tuple[dict[str, Any], Exception]] = [
    ({"max_length": 0}, too_small("max_length", 0)),
    ({"beam_size": 0}, too_small("beam_size", 0)),
    ({"top_beams": 0}, too_small("top_beams", 0)),
    ({"top_beams": 4}, ValueError("top_beams=4 must be at most beam_size=3: lower the one or raise the other")),
    ({"finish": "early"}, ValueError("finish='early' must be one of 'in_beam', 'set_aside': pass one of these")),
    ({"length_penalty": None},
     ValueError("length_penalty=None must be one of 'none', 'mean', 'gnmt': pass one of these")),
    ({"beam_size": 40, "top_beams": 30, "max_length": 1},
     ValueError("top_beams=30 must be at most 29, the number of sentences that there are for sample 0: ask for "
                "fewer, or pass a larger max_length")),
    ({"source": IDS[0]}, misshapen("source", (5,), "batch, source_seq")),
    ({"source": IDS[:, :0]}, empty("source", (3, 0), "batch, source_seq")),
    ({"source": IDS[:0]}, empty("source", (0, 5), "batch, source_seq")),
    ({"source": IDS.to("meta")}, elsewhere("source", "meta", "table", "cpu")),
    ({"source": IDS.int(), "pad_id": 2**31},
     ValueError("pad_id=2147483648 must fit source of torch.int32, -2147483648 … 2147483647: pass the id that pads "
                "the source, or convert them with source.long()")),
    ({"num_decoder_layers": 0}, too_small("num_decoder_layers", 0)),
    ({"source": IDS.float()}, no_ids("source", "float32")),
    ({"source": IDS.tolist()}, no_tensor("source", "list")),
    ({"params": {"table": torch.zeros(29, 14)}}, no_tensor("encoder.0.self_attention.w_q", "NoneType")),
    ({"params": {"tabel": torch.zeros(29, 14)}},
     TypeError("params has 'tabel' and must hold nothing that is not read: leave it out, or fix its spelling or the "
               "number of layers")),
]
# fmt: on


@pytest.mark.parametrize(("changed", "error"), DECODING_REFUSALS)
def test_decoding_refuses_arguments_that_do_not_fit(changed, error):
    refused_by_both(type(error), str(error), changed)


@pytest.mark.parametrize("name", ["bos_id", "eos_id", "max_length", "beam_size", "top_beams", "pad_id"])
@pytest.mark.parametrize("value", [True, 1.0, None, "1"])
def test_decoding_refuses_what_is_no_int(name, value):
    refused_by_both(TypeError, str(no_int(name, value)), {name: value})


@pytest.mark.parametrize("wrong", [29, -1])
def test_decoding_refuses_ids_outside_the_vocabulary(wrong):
    source = IDS.clone()
    source[1, 2] = wrong
    refused_by_both(IndexError, f"source[1, 2]={wrong} must lie in 0 … 28, {TABLE}", {"source": source})
    for name, does in (("bos_id", "begins what the decoder reads"), ("eos_id", "ends a sentence")):
        message = f"{name}={wrong} must lie in 0 … 28, the rows of table: pass the id that {does}"
        refused_by_both(IndexError, message, {name: wrong})
