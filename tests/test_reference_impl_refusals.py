"""How the reference refuses: every message names the argument, what it was, what it must be and what to do."""

import re
import sys
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
    PositionalEncoding,
    SingleHeadAttention,
    TokenEmbedding,
    Transformer,
    attention_scores,
    beam_search,
    causal_mask,
    cross_entropy,
    cut_fused,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    feed_forward,
    fused_multi_head_attention,
    greedy_decode,
    kl_divergence,
    label_smoothing,
    layer_norm,
    log_softmax,
    logits,
    merge_heads,
    multi_head_attention,
    one_hot,
    output_probabilities,
    pad_or_truncate,
    padding_mask,
    positional_encoding,
    project_heads,
    scaled_dot_product_attention,
    scaled_scores,
    shift_right,
    single_head_attention,
    single_head_attention_step,
    sinusoid_table,
    softmax,
    split_heads,
    token_embedding,
    transformer,
)
from goldformer.reference_impl._checks import check_tensors

SIZES = (14, 2, 23)
IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0], [9, 0, 0, 0, 0]])
LINEAR = "make the two agree (weights are (in, out): transpose those of nn.Linear)"
EMPTY = "without an empty axis: leave empty batches and sequences out"
NOT_READ = "and must hold nothing that is not read: leave it out, or fix its spelling or the number of layers"
BOOLEAN = "and must be torch.bool, True = may attend: convert a mask of ones and zeros with"
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
    ("function", "checks"),
    [
        (attend, 1),
        (attend_with_heads, 1),
        (attend_fused, 1),
        (attend_alone, 1),
        (feed, 1),
        (normalise, 1),
        # One for each block of parameters.
        (encode_layer, 4),
        (encode, 8),
        (decode_layer, 6),
        (decode, 12),
        (translate, 17),
    ],
)
def test_arguments_are_checked_once(function, checks, monkeypatch):
    calls = []

    def counting(*arguments, **keywords):
        calls.append(arguments)
        return check_tensors(*arguments, **keywords)

    for name, module in list(sys.modules.items()):
        if name.startswith("goldformer.reference_impl.") and hasattr(module, "check_tensors"):
            monkeypatch.setattr(module, "check_tensors", counting)
    function()
    assert len(calls) == checks


# Arguments that are changed, and the message; a call without changes is wrong as it stands.
# fmt: off
VALUES = [
    (attend, {"query": real(5, 11)},
     "key has shape (3, 7, 11) and must be (..., kv_seq, d_k) with ...=() as in query: make the two agree"),
    (attend, {"query": real(11)}, "query has shape (11,) and must be (..., q_seq, d_k): reshape it to at least 2 axes"),
    (attend, {"key": real(2, 7, 11)},
     "key has shape (2, 7, 11) and must be (..., kv_seq, d_k) with ...=(3,) as in query: make the two agree"),
    (attend, {"key": real(3, 7, 12)},
     "key has shape (3, 7, 12) and must be (..., kv_seq, d_k) with d_k=11 as in query: make the two agree"),
    (attend, {"value": real(3, 6, 13)},
     "value has shape (3, 6, 13) and must be (..., kv_seq, d_v) with kv_seq=7 as in key: make the two agree"),
    (attend, {"key": real(3, 0, 11), "value": real(3, 0, 13)},
     "key has shape (3, 0, 11) and must be (..., kv_seq, d_k) without an empty axis: leave empty batches and "
     "sequences out"),
    (attend, {"mask": torch.ones(7, 5, dtype=torch.bool)},
     "mask has shape (7, 5) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 5, 7): give it size 1 on the "
     "axes it repeats along, such as mask[:, None] for all heads of a sample"),
    (attend, {"mask": torch.ones(7, 7, dtype=torch.bool)},
     "mask has shape (7, 7) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 5, 7): give it size 1 on the "
     "axes it repeats along, such as mask[:, None] for all heads of a sample"),
    (attend, {"mask": torch.ones(1, 3, 5, 7, dtype=torch.bool)},
     "mask has shape (1, 3, 5, 7) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 5, 7): give it size 1 "
     "on the axes it repeats along, such as mask[:, None] for all heads of a sample"),
    (attend_with_heads, {"num_heads": 4}, "num_heads=4 does not divide the width 14 of w_q: choose a divisor of 14"),
    (attend_with_heads, {"num_heads": 7}, "num_heads=7 does not divide the width 26 of w_v: choose a divisor of 26"),
    (attend_with_heads, {"num_heads": 0}, "num_heads=0 must be at least 1: pass a positive size"),
    (attend_with_heads, {"num_heads": -2}, "num_heads=-2 must be at least 1: pass a positive size"),
    (attend_with_heads, {"query": real(5, 17)},
     "query has shape (5, 17) and must be (batch, q_seq, d_query): reshape it to 3 axes"),
    (attend_with_heads, {"key": real(1, 7, 19)},
     "key has shape (1, 7, 19) and must be (batch, kv_seq, d_key) with batch=3 as in query: make the two agree"),
    (attend_with_heads, {"w_q": real(14, 17)},
     "w_q has shape (14, 17) and must be (d_query, heads*d_k) with d_query=17 as in query: " + LINEAR),
    (attend_with_heads, {"w_k": real(19, 16)},
     "w_k has shape (19, 16) and must be (d_key, heads*d_k) with heads*d_k=14 as in w_q: " + LINEAR),
    (attend_with_heads, {"w_v": real(22, 26)},
     "w_v has shape (22, 26) and must be (d_value, heads*d_v) with d_value=23 as in value: " + LINEAR),
    (attend_with_heads, {"w_o": real(29, 26)},
     "w_o has shape (29, 26) and must be (heads*d_v, d_model) with heads*d_v=26 as in w_v: " + LINEAR),
    (attend_with_heads, {"b_k": real(1)},
     "b_k has shape (1,) and must be (heads*d_k) with heads*d_k=14 as in w_q: make the two agree"),
    (attend_with_heads, {"b_o": real(1, 29)}, "b_o has shape (1, 29) and must be (d_model): reshape it to 1 axis"),
    (attend_with_heads, {"mask": torch.ones(3, 5, 7, dtype=torch.bool)},
     "mask has shape (3, 5, 7) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 2, 5, 7): give it size 1 "
     "on the axes it repeats along, such as mask[:, None] for all heads of a sample"),
    (attend_fused, {"num_heads": 4}, "num_heads=4 does not divide the width 14 of w_o: choose a divisor of 14"),
    (attend_fused, {"w_qkv": real(17, 43)},
     "w_qkv has shape (17, 43) and must have 42 columns, three times the width 14 of w_o: lay q, k and v of every "
     "head side by side"),
    (attend_fused, {"w_o": real(14, 17)},
     "w_o has shape (14, 17) and must be (heads*d_k, heads*d_k) with heads*d_k=14 as in w_o: " + LINEAR),
    (attend_fused, {"b_qkv": real(14)},
     "b_qkv has shape (14,) and must be (3*heads*d_k) with 3*heads*d_k=42 as in w_qkv: make the two agree"),
    (attend_fused, {"x": real(3, 5, 14)},
     "w_qkv has shape (17, 42) and must be (d_input, 3*heads*d_k) with d_input=14 as in x: " + LINEAR),
    (lambda **changed: project_heads(real(3, 5, 17), real(17, 14), **changed), {"num_heads": 4},
     "num_heads=4 does not divide the width 14 of w: choose a divisor of 14"),
    (lambda **changed: project_heads(real(3, 5, 17), real(17, 14), **changed), {"num_heads": 2, "b": real(13)},
     "b has shape (13,) and must be (heads*d) with heads*d=14 as in w: make the two agree"),
    (lambda **changed: cut_fused(real(3, 5, 42), **changed), {"num_heads": 4},
     "qkv has shape (3, 5, 42) and its columns must be a multiple of 12: lay q, k and v of 4 heads side by side, all "
     "of one width"),
    (attend_alone, {"w_k": real(2, 3)},
     "w_k has shape (2, 3) and must be (d_model, d_model) with d_model=2 as in x: " + LINEAR),
    (attend_alone, {"w_v": real(3, 2)},
     "w_v has shape (3, 2) and must be (d_model, d_model) with d_model=2 as in x: " + LINEAR),
    (attend_alone, {"x": real(1, 5, 2)}, "x has shape (1, 5, 2) and must be (seq, d_model): reshape it to 2 axes"),
    (train_alone, {"output_gradient": real(1, 2)},
     "output_gradient has shape (1, 2) and must be (seq, d_model) with seq=5 as in x: make the two agree"),
    (train_alone, {"w_k": real(2, 3)},
     "w_k has shape (2, 3) and must be (d_model, d_model) with d_model=2 as in x: " + LINEAR),
    (train_alone, {"steps": 0}, "steps=0 must be at least 1: pass a positive size"),
    (train_alone, {"learning_rate": -0.1},
     "learning_rate=-0.1 must be finite and at least 0: pass a small number such as 0.01"),
    (train_alone, {"learning_rate": float("nan")},
     "learning_rate=nan must be finite and at least 0: pass a small number such as 0.01"),
    (lambda: softmax(real()), {}, "scores has shape () and must be (..., n): reshape it to at least 1 axis"),
    (lambda: softmax(real(3, 0)), {},
     "scores has shape (3, 0) and must be (..., n) without an empty axis: leave empty batches and sequences out"),
    (lambda: attention_scores(real(5, 11), real(7, 12)), {},
     "key has shape (7, 12) and must be (..., kv_seq, d_k) with d_k=11 as in query: make the two agree"),
    (lambda: scaled_scores(real(5, 0), real(7, 0)), {},
     "query has shape (5, 0) and must be (..., q_seq, d_k) without an empty axis: leave empty batches and sequences "
     "out"),
    (lambda: causal_mask(0, 5), {}, "q_seq=0 must be at least 1: pass a positive size"),
    (lambda: causal_mask(5, -1), {}, "kv_seq=-1 must be at least 1: pass a positive size"),
    (lambda: padding_mask(torch.tensor([1, 0]), 0), {},
     "ids has shape (2,) and must be (batch, seq): reshape it to 2 axes"),
    (lambda: padding_mask(torch.ones(3, 0, dtype=torch.int64), 0), {},
     "ids has shape (3, 0) and must be (batch, seq) without an empty axis: leave empty batches and sequences out"),
    (lambda: padding_mask(torch.ones(1, 2, dtype=torch.int32), 2**32 + 1), {},
     "pad_id=4294967297 must fit ids of torch.int32, -2147483648 … 2147483647: pass the id that pads these ids, or "
     "convert them with ids.long()"),
    (lambda: token_embedding(torch.tensor([0, 1]), real(4, 3)), {},
     "ids has shape (2,) and must be (batch, seq): reshape it to 2 axes"),
    (lambda: token_embedding(torch.tensor([[0, 1]]), real(4)), {},
     "table has shape (4,) and must be (vocab, d_model): reshape it to 2 axes"),
    (lambda: token_embedding(torch.tensor([[0, 1]]), real(4, 3, device="meta")), {},
     "ids is on cpu and must be on the device of table, meta: move it with ids.to('meta')"),
    (lambda: sinusoid_table(0, 4), {}, "seq=0 must be at least 1: pass a positive size"),
    (lambda: sinusoid_table(4, -2), {}, "d_model=-2 must be at least 1: pass a positive size"),
    (lambda: positional_encoding(real(5, 14)), {},
     "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes"),
    (lambda: PositionalEncoding(14, max_len=17)(real(3, 5, 13)), {},
     "x has shape (3, 5, 13) and must be (batch, seq, d_model) with d_model=14 as in pe: make the two agree"),
    (lambda: PositionalEncoding(14, max_len=17)(real(3, 5, 14, device="meta")), {},
     "x is on meta and must be on the device of pe, cpu: move it with x.to('cpu')"),
    (lambda: PositionalEncoding(14, max_len=0), {}, "max_len=0 must be at least 1: pass a positive size"),
    (lambda: PositionalEncoding(0), {}, "d_model=0 must be at least 1: pass a positive size"),
    (lambda: split_heads(real(3, 5, 14), 4), {},
     "num_heads=4 does not divide the width 14 of x: choose a divisor of 14"),
    (lambda: merge_heads(real(3, 5, 14)), {},
     "x has shape (3, 5, 14) and must be (batch, heads, seq, d): reshape it to 4 axes"),
    (lambda: attend(key=real(3, 7, 11, device="meta")), {},
     "key is on meta and must be on the device of query, cpu: move it with key.to('cpu')"),
    (lambda: attend(mask=torch.ones(5, 7, dtype=torch.bool, device="meta")), {},
     "mask is on meta and must be on the device of query, cpu: move it with mask.to('cpu')"),
    (lambda: MultiHeadAttention(14, 4), {},
     "num_heads=4 does not divide the width 14 of the model, d_model: choose a divisor of 14"),
    (lambda: MultiHeadAttention(0, 1), {}, "d_model=0 must be at least 1: pass a positive size"),
    (lambda: MultiHeadAttention(14, 0), {}, "num_heads=0 must be at least 1: pass a positive size"),
    (lambda: MultiHeadAttention(14, 2, d_key=0), {}, "d_key=0 must be at least 1: pass a positive size"),
    (lambda: MultiHeadAttention(14, 2, d_value=-1), {}, "d_value=-1 must be at least 1: pass a positive size"),
    (lambda: FusedMultiHeadAttention(17, 14, 4), {},
     "num_heads=4 does not divide the width 14 of the model, d_model: choose a divisor of 14"),
    (lambda: FusedMultiHeadAttention(0, 14, 2), {}, "d_input=0 must be at least 1: pass a positive size"),
    (lambda: FusedMultiHeadAttention(17, 0, 2), {}, "d_model=0 must be at least 1: pass a positive size"),
    (lambda: SingleHeadAttention(0), {}, "d_model=0 must be at least 1: pass a positive size"),
    (lambda: TokenEmbedding(0, 14), {}, "vocab=0 must be at least 1: pass a positive size"),
    (lambda: TokenEmbedding(29, -14), {}, "d_model=-14 must be at least 1: pass a positive size"),
    (feed, {"w_1": real(23, 14)},
     "w_1 has shape (23, 14) and must be (d_model, d_ff) with d_model=14 as in x: " + LINEAR),
    (feed, {"w_2": real(23, 15)},
     "w_2 has shape (23, 15) and must be (d_ff, d_model) with d_model=14 as in x: " + LINEAR),
    (feed, {"b_1": real(14)}, "b_1 has shape (14,) and must be (d_ff) with d_ff=23 as in w_1: make the two agree"),
    (feed, {"x": real(5, 14)}, "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes"),
    (normalise, {"gamma": real(13)},
     "gamma has shape (13,) and must be (d_model) with d_model=14 as in x: make the two agree"),
    (normalise, {"beta": real(1, 14)}, "beta has shape (1, 14) and must be (d_model): reshape it to 1 axis"),
    (normalise, {"eps": 0}, "eps=0 must be finite and above 0: pass a small number such as 1e-5"),
    (normalise, {"eps": -1e-5}, "eps=-1e-05 must be finite and above 0: pass a small number such as 1e-5"),
    (normalise, {"eps": float("nan")}, "eps=nan must be finite and above 0: pass a small number such as 1e-5"),
    (encode_layer, {"x": real(5, 14)}, "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes"),
    (encode_layer, {"self_attention.w_k": real(14, 12)},
     "self_attention.w_k has shape (14, 12) and must be (d_model, heads*d_k) with heads*d_k=14 as in "
     "self_attention.w_q: " + LINEAR),
    (encode_layer, {"feed_forward.w_1": real(23, 14)},
     "feed_forward.w_1 has shape (23, 14) and must be (d_model, d_ff) with d_model=14 as in x: " + LINEAR),
    (encode_layer, {"norm_2.gamma": real(1)},
     "norm_2.gamma has shape (1,) and must be (d_model) with d_model=14 as in x: make the two agree"),
    (encode_layer, {"num_heads": 3},
     "num_heads=3 does not divide the width 14 of self_attention.w_q: choose a divisor of 14"),
    (encode_layer, {"mask": true(3, 5, 5)},
     "mask has shape (3, 5, 5) and must broadcast to the scores, (batch, heads, seq, seq) = (3, 2, 5, 5): give it "
     "size 1 on the axes it repeats along, such as mask[:, None] for all heads of a sample"),
    (encode, {"num_layers": 0}, "num_layers=0 must be at least 1: pass a positive size"),
    (encode, {"encoder.1.norm_1.beta": real(15)},
     "encoder.1.norm_1.beta has shape (15,) and must be (d_model) with d_model=14 as in x: make the two agree"),
    (decode_layer, {"memory": real(2, 7, 14)},
     "memory has shape (2, 7, 14) and must be (batch, source_seq, d_model) with batch=3 as in x: make the two agree"),
    (decode_layer, {"memory": real(3, 7, 13)},
     "memory has shape (3, 7, 13) and must be (batch, source_seq, d_model) with d_model=14 as in x: make the two "
     "agree"),
    (decode_layer, {"memory": real(3, 0, 14)},
     f"memory has shape (3, 0, 14) and must be (batch, source_seq, d_model) {EMPTY}"),
    (decode_layer, {"self_mask": true(5, 7)},
     "self_mask has shape (5, 7) and must broadcast to the scores, (batch, heads, seq, seq) = (3, 2, 5, 5): give it "
     "size 1 on the axes it repeats along, such as self_mask[:, None] for all heads of a sample"),
    (decode_layer, {"memory_mask": true(5, 5)},
     "memory_mask has shape (5, 5) and must broadcast to the scores, (batch, heads, seq, source_seq) = (3, 2, 5, 7): "
     "give it size 1 on the axes it repeats along, such as memory_mask[:, None] for all heads of a sample"),
    (decode, {"decoder.0.cross_attention.w_o": real(13, 14)},
     "decoder.0.cross_attention.w_o has shape (13, 14) and must be (heads*d_v, d_model) with heads*d_v=14 as in "
     "decoder.0.cross_attention.w_v: " + LINEAR),
    (translate, {"target": IDS[:2]},
     "target has shape (2, 5) and must be (batch, seq) with batch=3 as in source: make the two agree"),
    (translate, {"source": IDS[0]}, "source has shape (5,) and must be (batch, source_seq): reshape it to 2 axes"),
    (translate, {"w_vocab": real(29, 14)},
     "w_vocab has shape (29, 14) and must be (d_model, vocab) with d_model=14 as in table: " + LINEAR),
    (translate, {"b_vocab": real(14)},
     "b_vocab has shape (14,) and must be (vocab) with vocab=29 as in table: make the two agree"),
    (translate, {"encoder.0.self_attention.w_q": real(12, 14)},
     "encoder.0.self_attention.w_q has shape (12, 14) and must be (d_model, heads*d_k) with d_model=14 as in table: "
     "" + LINEAR),
    (translate, {"num_encoder_layers": 0}, "num_encoder_layers=0 must be at least 1: pass a positive size"),
    (translate, {"source": IDS.int(), "pad_id": 2**31},
     "pad_id=2147483648 must fit source of torch.int32, -2147483648 … 2147483647: pass the id that pads the source, "
     "or convert them with source.long()"),
    (translate, {"target": IDS.to("meta")},
     "target is on meta and must be on the device of table, cpu: move it with target.to('cpu')"),
    (lose, {"targets": IDS[:, :4]},
     "targets has shape (3, 4) and must be (batch, seq) with seq=5 as in logits: make the two agree"),
    (lose, {"logits": real(5, 29)}, "logits has shape (5, 29) and must be (batch, seq, vocab): reshape it to 3 axes"),
    (lose, {"targets": torch.zeros(3, 5, dtype=torch.int64)},
     "targets hold nothing but pad_id=0 and must hold a word, or there is nothing to average: leave batches of "
     "padding out"),
    (lambda: log_softmax(real(3, 0)), {}, f"scores has shape (3, 0) and must be (..., n) {EMPTY}"),
    (lambda: pad_or_truncate(real(3, 5, 14), 0), {}, "length=0 must be at least 1: pass a positive size"),
    (lambda: pad_or_truncate(real(5, 14), 3), {},
     "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes"),
    (lambda: shift_right(IDS[0], 1), {}, "ids has shape (5,) and must be (batch, seq): reshape it to 2 axes"),
    (lambda: shift_right(IDS.int(), -(2**31) - 1), {},
     "bos_id=-2147483649 must fit ids of torch.int32, -2147483648 … 2147483647: pass the id that begins these ids, or "
     "convert them with ids.long()"),
    (lambda: logits(real(3, 5, 14), w_vocab=real(29, 14)), {},
     "w_vocab has shape (29, 14) and must be (d_model, vocab) with d_model=14 as in x: " + LINEAR),
    (lambda: output_probabilities(real(3, 5, 14), w_vocab=real(14, 29), b_vocab=real(28)), {},
     "b_vocab has shape (28,) and must be (vocab) with vocab=29 as in w_vocab: make the two agree"),
    (lambda: one_hot(IDS, 0), {}, "vocab=0 must be at least 1: pass a positive size"),
    (lambda: label_smoothing(real(3, 5, 29), 1.1), {},
     "smoothing=1.1 must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent"),
    (lambda: label_smoothing(real(3, 5, 29), float("nan")), {},
     "smoothing=nan must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent"),
    (lambda: kl_divergence(real(3, 29), real(3, 28)), {},
     "logits has shape (3, 28) and must be (..., n) with n=29 as in target: make the two agree"),
    (lambda: FeedForward(14, 23, dropout=-0.1), {},
     "dropout=-0.1 must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent"),
    (lambda: LayerNorm(14, 0.0), {}, "eps=0.0 must be finite and above 0: pass a small number such as 1e-5"),
    (lambda: EncoderLayer(14, 4, 23), {},
     "num_heads=4 does not divide the width 14 of the model, d_model: choose a divisor of 14"),
    (lambda: Transformer(29, 14, 2, 1, -1, 23, pad_id=0), {},
     "num_decoder_layers=-1 must be at least 1: pass a positive size"),
    (lambda: EncoderLayer(*SIZES)(real(3, 5, 13)), {},
     "x has shape (3, 5, 13) and must be (batch, seq, d_model) with d_model=14 as in the module: make the two agree"),
    (lambda: Decoder(*SIZES, 2)(real(3, 5, 14), real(3, 7, 13)), {},
     "memory has shape (3, 7, 13) and must be (batch, source_seq, d_model) with d_model=14 as in the module: make the "
     "two agree"),
    (lambda: DecoderLayer(*SIZES)(real(3, 5, 14), real(3, 7, 14), memory_mask=true(3, 5, 7)), {},
     "memory_mask has shape (3, 5, 7) and must broadcast to the scores, (batch, heads, seq, source_seq) = (3, 2, 5, "
     "7): give it size 1 on the axes it repeats along, such as memory_mask[:, None] for all heads of a sample"),
    (lambda: model().decode(IDS, real(3, 6, 14), IDS), {},
     "memory has shape (3, 6, 14) and must be (batch, source_seq, d_model) with source_seq=5 as in source: make the "
     "two agree"),
    (lambda: model().decode(IDS, real(3, 5, 15), IDS), {},
     "memory has shape (3, 5, 15) and must be (batch, source_seq, d_model) with d_model=14 as in table: make the two "
     "agree"),
]
KINDS = [
    # A module inside another one checks what it is called with directly.
    (lambda: EncoderLayer(*SIZES).self_attention(*[real(3, 5, 14)] * 3, torch.ones(5, 5)), {},
     f"mask has dtype torch.float32 {BOOLEAN} mask != 0, an additive mask of 0 and -inf with mask == 0"),
    (lambda: model().get_submodule("decoder.1.feed_forward")(IDS), {},
     "x has dtype torch.int64 and must be floating point: convert it with x.float()"),
    (lambda: attend(mask=torch.ones(5, 7)), {},
     f"mask has dtype torch.float32 {BOOLEAN} mask != 0, an additive mask of 0 and -inf with mask == 0"),
    (lambda: attend_with_heads(mask=torch.ones(5, 7).long()), {},
     f"mask has dtype torch.int64 {BOOLEAN} mask != 0, an additive mask of 0 and -inf with mask == 0"),
    (lambda: attend_fused(mask=torch.ones(5, 5).byte()), {},
     f"mask has dtype torch.uint8 {BOOLEAN} mask != 0, an additive mask of 0 and -inf with mask == 0"),
    (lambda: attend(mask=[[True]]), {},
     "mask is of type list and must be a torch.Tensor: convert it with torch.as_tensor(mask)"),
    (lambda: softmax(np.zeros(3)), {},  # type: ignore[arg-type]
     "scores is of type ndarray and must be a torch.Tensor: convert it with torch.as_tensor(scores)"),
    (lambda: softmax(torch.tensor([1, 2])), {},
     "scores has dtype torch.int64 and must be floating point: convert it with scores.float()"),
    (lambda: attend(value=real(3, 7, 13, dtype=torch.float64)), {},
     "value has dtype torch.float64 and must have that of query, torch.float32: convert it with "
     "value.to(torch.float32)"),
    (lambda: attend_with_heads(b_v=real(26, dtype=torch.float16)), {},
     "b_v has dtype torch.float16 and must have that of query, torch.float32: convert it with b_v.to(torch.float32)"),
    (lambda: PositionalEncoding(14)(real(3, 5, 14, dtype=torch.float64)), {},
     "x has dtype torch.float64 and must have that of pe, torch.float32: convert it with x.to(torch.float32)"),
    (lambda: attend_alone(w_v=None), {}, "w_v is of type NoneType and must be a torch.Tensor: it cannot be left out"),
    (lambda: attend_alone(causal=1), {}, "causal=1 is of type int and must be a bool: pass True or False"),
    (lambda: SingleHeadAttention(2, causal="yes"), {},  # type: ignore[arg-type]
     "causal='yes' is of type str and must be a bool: pass True or False"),
    (lambda: attend_with_heads(num_heads=2.0), {},
     "num_heads=2.0 is of type float and must be an int: pass int(num_heads)"),
    (lambda: MultiHeadAttention(14, True), {},
     "num_heads=True is of type bool and must be an int: pass int(num_heads)"),
    (lambda: causal_mask("5", 5), {}, "q_seq='5' is of type str and must be an int: pass int(q_seq)"),  # type: ignore[arg-type]
    (lambda: sinusoid_table(5, 4.0), {}, "d_model=4.0 is of type float and must be an int: pass int(d_model)"),  # type: ignore[arg-type]
    (lambda: sinusoid_table(5, 4, dtype=torch.int64), {},
     "dtype=torch.int64 must be a floating-point torch.dtype: pass torch.float32"),
    (lambda: sinusoid_table(5, 4, dtype=float), {},  # type: ignore[arg-type]
     "dtype=<class 'float'> must be a floating-point torch.dtype: pass torch.float32"),
    (lambda: positional_encoding(torch.ones(3, 5, 14).long()), {},
     "x has dtype torch.int64 and must be floating point: convert it with x.float()"),
    (lambda: padding_mask(real(3, 5), 0), {},
     "ids has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with ids.long()"),
    (lambda: padding_mask(torch.ones(3, 5).long(), None), {},
     "pad_id=None is of type NoneType and must be an int: pass int(pad_id)"),
    (lambda: token_embedding(torch.ones(3, 5, dtype=torch.uint8), real(4, 3)), {},
     "ids has dtype torch.uint8 and must be torch.int64 or torch.int32: convert it with ids.long()"),
    (lambda: token_embedding([[1]], real(4, 3)), {},  # type: ignore[arg-type]
     "ids is of type list and must be a torch.Tensor: convert it with torch.as_tensor(ids)"),
    (lambda: token_embedding(torch.tensor([[1]]), torch.tensor([[1, 2]])), {},
     "table has dtype torch.int64 and must be floating point: convert it with table.float()"),
    (encode_layer, {"mask": torch.ones(5, 5)},
     f"mask has dtype torch.float32 {BOOLEAN} mask != 0, an additive mask of 0 and -inf with mask == 0"),
    (decode_layer, {"self_mask": torch.ones(5, 5).long()},
     f"self_mask has dtype torch.int64 {BOOLEAN} self_mask != 0, an additive mask of 0 and -inf with self_mask == 0"),
    (encode_layer, {"norm_1.gamma": None},
     "norm_1.gamma is of type NoneType and must be a torch.Tensor: it cannot be left out"),
    (translate, {"table": None}, "table is of type NoneType and must be a torch.Tensor: it cannot be left out"),
    (decode, {"num_layers": 3},
     "decoder.2.self_attention.w_q is of type NoneType and must be a torch.Tensor: it cannot be left out"),
    (encode, {"num_layers": 1}, f"params has 'encoder.1.self_attention.w_q' {NOT_READ}"),
    (encode_layer, {"norm_3.gamma": real(14)}, f"params has 'norm_3.gamma' {NOT_READ}"),
    (translate, {"encoder.0.self_attention.q": real(14)}, f"params has 'encoder.0.self_attention.q' {NOT_READ}"),
    (encode_layer, {"params": [real(14)]},
     "params is of type list and must map names to tensors: pass a dict, such as the state_dict of the module"),
    (encode_layer, {"feed_forward.b_2": real(14, dtype=torch.float64)},
     "feed_forward.b_2 has dtype torch.float64 and must have that of x, torch.float32: convert it with "
     "feed_forward.b_2.to(torch.float32)"),
    (decode_layer, {"memory": real(3, 7, 14, dtype=torch.float64)},
     "memory has dtype torch.float64 and must have that of x, torch.float32: convert it with memory.to(torch.float32)"),
    (translate, {"norm_first": "pre"}, "norm_first='pre' is of type str and must be a bool: pass True or False"),
    (encode_layer, {"num_heads": 2.0}, "num_heads=2.0 is of type float and must be an int: pass int(num_heads)"),
    (translate, {"pad_id": None}, "pad_id=None is of type NoneType and must be an int: pass int(pad_id)"),
    (translate, {"source": IDS.float()},
     "source has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with source.long()"),
    (translate, {"target": [[1]]},
     "target is of type list and must be a torch.Tensor: convert it with torch.as_tensor(target)"),
    (lose, {"logits": IDS}, "logits has dtype torch.int64 and must be floating point: convert it with logits.float()"),
    (lose, {"targets": IDS.float()},
     "targets has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with targets.long()"),
    (normalise, {"eps": "1e-5"}, "eps='1e-5' is of type str and must be a float: pass float(eps)"),
    (normalise, {"eps": True}, "eps=True is of type bool and must be a float: pass float(eps)"),
    (feed, {"w_2": None}, "w_2 is of type NoneType and must be a torch.Tensor: it cannot be left out"),
    (lambda: label_smoothing(one_hot(IDS, 29), 0.1), {},
     "target has dtype torch.int64 and must be floating point: convert it with target.float()"),
    (lambda: label_smoothing(real(3, 5, 29), "0.1"), {},  # type: ignore[arg-type]
     "smoothing='0.1' is of type str and must be a float: pass float(smoothing)"),
    (lambda: one_hot(IDS.float(), 29), {},
     "ids has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with ids.long()"),
    (lambda: pad_or_truncate(real(3, 5, 14), 4.0), {},  # type: ignore[arg-type]
     "length=4.0 is of type float and must be an int: pass int(length)"),
    (lambda: shift_right(IDS, "1"), {}, "bos_id='1' is of type str and must be an int: pass int(bos_id)"),  # type: ignore[arg-type]
    (lambda: kl_divergence(real(3, 29).double(), real(3, 29)), {},
     "logits has dtype torch.float32 and must have that of target, torch.float64: convert it with "
     "logits.to(torch.float64)"),
    (lambda: DecoderLayer(*SIZES, norm_first=None), {},
     "norm_first=None is of type NoneType and must be a bool: pass True or False"),
    (lambda: EncoderLayer(*SIZES, dropout=None), {},
     "dropout=None is of type NoneType and must be a float: pass float(dropout)"),
    (lambda: Transformer(29, 14, 2, 1, 1, 23, pad_id="<pad>"), {},  # type: ignore[arg-type]
     "pad_id='<pad>' is of type str and must be an int: pass int(pad_id)"),
    (lambda: model().decode(IDS, real(3, 5, 14, dtype=torch.float64), IDS), {},
     "memory has dtype torch.float64 and must have that of table, torch.float32: convert it with "
     "memory.to(torch.float32)"),
]
# fmt: on


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    VALUES,
)
def test_shapes_sizes_and_devices_that_do_not_fit_are_refused(function, changed, message):
    with refused(ValueError, message):
        function(**changed)


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    KINDS,
)
def test_wrong_kinds_are_refused(function, changed, message):
    with refused(TypeError, message):
        function(**changed)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("wrong", "position"), [(29, [1, 2]), (10**6, [0, 0]), (-1, [1, 0]), (-29, [0, 3])])
def test_the_first_id_outside_the_table_is_named(wrong, position, dtype):
    ids = torch.tensor([[0, 28, 3, 4], [5, 6, 7, 8]], dtype=dtype)
    ids[tuple(position)] = wrong
    ids[1, 3] = 30

    message = f"ids{position}={wrong} must lie in 0 … 28, {TABLE}"
    with refused(IndexError, message):
        token_embedding(ids, real(29, 2))
    with refused(IndexError, message):
        TokenEmbedding(29, 2)(ids)


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


def decode_by_function(of_beams: bool, changed: dict[str, Any]) -> Any:
    counts = {"num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2, "pad_id": 0}
    given = {"source": IDS, **counts, **WORDS, "params": model().state_dict()}
    return beam_search(**{**given, **BEAMS, **changed}) if of_beams else greedy_decode(**{**given, **changed})


def decode_by_method(of_beams: bool, changed: dict[str, Any]) -> Any:
    given = {"source": IDS, **WORDS}
    return model().beam_search(**{**given, **BEAMS, **changed}) if of_beams else model().greedy_decode(
        **{**given, **changed}
    )  # fmt: skip


def every_way(changed: dict[str, Any]) -> list[tuple[Any, bool]]:
    """The calls that take the arguments that are changed: functions and methods, greedy and with beams."""
    calls = [decode_by_function] if any(name in changed for name in ("params", "num_decoder_layers", "pad_id")) else [
        decode_by_function, decode_by_method
    ]  # fmt: skip
    return [(call, beams) for call in calls for beams in (True, False) if beams or not set(changed) & set(OF_BEAMS)]


def refused_every_way(error: type[Exception], message: str, changed: dict[str, Any]) -> None:
    for decoding, beams in every_way(changed):
        with refused(error, message):
            decoding(beams, changed)


def test_decoding_is_accepted_unchanged():
    for decoding, beams in every_way({}):
        decoding(beams, {})
    assert len(every_way({})) == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_length": 0}, "max_length=0 must be at least 1: pass a positive size"),
        ({"beam_size": 0}, "beam_size=0 must be at least 1: pass a positive size"),
        ({"top_beams": 0}, "top_beams=0 must be at least 1: pass a positive size"),
        ({"top_beams": -1}, "top_beams=-1 must be at least 1: pass a positive size"),
        ({"top_beams": 4}, "top_beams=4 must be at most beam_size=3: lower the one or raise the other"),
        (
            {"finish": "early"},
            "finish='early' must be one of 'in_beam', 'set_aside': pass one of these",
        ),
        (
            {"length_penalty": None},
            "length_penalty=None must be one of 'none', 'mean', 'gnmt': pass one of these",
        ),
        (
            {"beam_size": 40, "top_beams": 30, "max_length": 1},
            "top_beams=30 must be at most 29, the number of sentences that there are for sample 0: "
            "ask for fewer, or pass a larger max_length",
        ),
        ({"source": IDS[0]}, "source has shape (5,) and must be (batch, source_seq): reshape it to 2 axes"),
        (
            {"source": IDS[:, :0]},
            "source has shape (3, 0) and must be (batch, source_seq) without an empty axis: "
            "leave empty batches and sequences out",
        ),
        (
            {"source": IDS[:0]},
            "source has shape (0, 5) and must be (batch, source_seq) without an empty axis: "
            "leave empty batches and sequences out",
        ),
        (
            {"source": IDS.to("meta")},
            "source is on meta and must be on the device of table, cpu: move it with source.to('cpu')",
        ),
        (
            {"source": IDS.int(), "pad_id": 2**31},
            "pad_id=2147483648 must fit source of torch.int32, -2147483648 … 2147483647: "
            "pass the id that pads the source, or convert them with source.long()",
        ),
        ({"num_decoder_layers": 0}, "num_decoder_layers=0 must be at least 1: pass a positive size"),
    ],
)
def test_decoding_refuses_shapes_and_numbers_that_do_not_fit(changed, message):
    refused_every_way(ValueError, message, changed)


@pytest.mark.parametrize("name", ["bos_id", "eos_id", "max_length", "beam_size", "top_beams", "pad_id"])
@pytest.mark.parametrize(("value", "kind"), [(True, "bool"), (1.0, "float"), (None, "NoneType"), ("1", "str")])
def test_decoding_refuses_what_is_no_int(name, value, kind):
    message = f"{name}={value!r} is of type {kind} and must be an int: pass int({name})"
    refused_every_way(TypeError, message, {name: value})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"source": IDS.float()},
            "source has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with source.long()",
        ),
        (
            {"source": IDS.tolist()},
            "source is of type list and must be a torch.Tensor: convert it with torch.as_tensor(source)",
        ),
        (
            {"params": {"table": torch.zeros(29, 14)}},
            "w_vocab is of type NoneType and must be a torch.Tensor: it cannot be left out",
        ),
        (
            {"params": {"tabel": torch.zeros(29, 14)}},
            "params has 'tabel' and must hold nothing that is not read: "
            "leave it out, or fix its spelling or the number of layers",
        ),
    ],
)
def test_decoding_refuses_wrong_kinds(changed, message):
    refused_every_way(TypeError, message, changed)


@pytest.mark.parametrize("wrong", [29, -1])
def test_decoding_refuses_ids_outside_the_vocabulary(wrong):
    source = IDS.clone()
    source[1, 2] = wrong
    refused_every_way(IndexError, f"source[1, 2]={wrong} must lie in 0 … 28, {TABLE}", {"source": source})
    for name, does in (("bos_id", "begins what the decoder reads"), ("eos_id", "ends a sentence")):
        message = f"{name}={wrong} must lie in 0 … 28, the rows of table: pass the id that {does}"
        refused_every_way(IndexError, message, {name: wrong})
