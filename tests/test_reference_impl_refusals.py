"""How layers, model and loss refuse: every sentence says what it got, what it must be and what to do."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from goldformer.reference_impl import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Transformer,
    cross_entropy,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    feed_forward,
    kl_divergence,
    label_smoothing,
    layer_norm,
    log_softmax,
    logits,
    one_hot,
    output_probabilities,
    pad_or_truncate,
    shift_right,
    transformer,
)

SIZES = (14, 2, 23)
IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0], [9, 0, 0, 0, 0]])
LINEAR = "make the two agree (weights are (in, out): transpose those of nn.Linear)"
EMPTY = "without an empty axis: leave empty batches and sequences out"
NOT_READ = "and must hold nothing that is not read: leave it out, or mend its spelling or the number of layers"
BOOLEAN = "and must be torch.bool, True = may attend: convert a mask of ones and zeros with"


def real(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def true(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def refused(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def model() -> Transformer:
    return Transformer(29, *SIZES[:2], 1, 2, SIZES[2], pad_id=0)


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
    for accepted in (encode_layer, encode, decode_layer, decode, translate, feed, normalise, lose):
        accepted()


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    [
        (
            feed,
            {"w_1": real(23, 14)},
            "w_1 has shape (23, 14) and must be (d_model, d_ff) with d_model=14 as in x: " + LINEAR,
        ),
        (
            feed,
            {"w_2": real(23, 15)},
            "w_2 has shape (23, 15) and must be (d_ff, d_model) with d_model=14 as in x: " + LINEAR,
        ),
        (feed, {"b_1": real(14)}, "b_1 has shape (14,) and must be (d_ff) with d_ff=23 as in w_1: make the two agree"),
        (feed, {"x": real(5, 14)}, "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes"),
        (
            normalise,
            {"gamma": real(13)},
            "gamma has shape (13,) and must be (d_model) with d_model=14 as in x: make the two agree",
        ),
        (normalise, {"beta": real(1, 14)}, "beta has shape (1, 14) and must be (d_model): reshape it to 1 axis"),
        (normalise, {"eps": 0}, "eps=0 must be finite and above 0: pass a small number such as 1e-5"),
        (normalise, {"eps": -1e-5}, "eps=-1e-05 must be finite and above 0: pass a small number such as 1e-5"),
        (normalise, {"eps": float("nan")}, "eps=nan must be finite and above 0: pass a small number such as 1e-5"),
        (
            encode_layer,
            {"x": real(5, 14)},
            "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes",
        ),
        (
            encode_layer,
            {"self_attention.w_k": real(14, 12)},
            "self_attention.w_k has shape (14, 12) and must be (d_model, heads*d_k) with heads*d_k=14 as in "
            "self_attention.w_q: " + LINEAR,
        ),
        (
            encode_layer,
            {"feed_forward.w_1": real(23, 14)},
            "feed_forward.w_1 has shape (23, 14) and must be (d_model, d_ff) with d_model=14 as in x: " + LINEAR,
        ),
        (
            encode_layer,
            {"norm_2.gamma": real(1)},
            "norm_2.gamma has shape (1,) and must be (d_model) with d_model=14 as in x: make the two agree",
        ),
        (
            encode_layer,
            {"num_heads": 3},
            "num_heads=3 does not divide the width 14 of self_attention.w_q: choose a divisor of 14",
        ),
        (
            encode_layer,
            {"mask": true(3, 5, 5)},
            "mask has shape (3, 5, 5) and must broadcast to the scores, (batch, heads, seq, seq) = (3, 2, 5, 5): "
            "give it size 1 on the axes it repeats along, such as mask[:, None] for all heads of a sample",
        ),
        (encode, {"num_layers": 0}, "num_layers=0 must be at least 1: pass a positive size"),
        (
            encode,
            {"encoder.1.norm_1.beta": real(15)},
            "encoder.1.norm_1.beta has shape (15,) and must be (d_model) with d_model=14 as in x: make the two agree",
        ),
        (
            decode_layer,
            {"memory": real(2, 7, 14)},
            "memory has shape (2, 7, 14) and must be (batch, source_seq, d_model) with batch=3 as in x: "
            "make the two agree",
        ),
        (
            decode_layer,
            {"memory": real(3, 7, 13)},
            "memory has shape (3, 7, 13) and must be (batch, source_seq, d_model) with d_model=14 as in x: "
            "make the two agree",
        ),
        (
            decode_layer,
            {"memory": real(3, 0, 14)},
            f"memory has shape (3, 0, 14) and must be (batch, source_seq, d_model) {EMPTY}",
        ),
        (
            decode_layer,
            {"self_mask": true(5, 7)},
            "self_mask has shape (5, 7) and must broadcast to the scores, (batch, heads, seq, seq) = (3, 2, 5, 5): "
            "give it size 1 on the axes it repeats along, such as self_mask[:, None] for all heads of a sample",
        ),
        (
            decode_layer,
            {"memory_mask": true(5, 5)},
            "memory_mask has shape (5, 5) and must broadcast to the scores, (batch, heads, seq, source_seq) = "
            "(3, 2, 5, 7): give it size 1 on the axes it repeats along, such as memory_mask[:, None] for all heads "
            "of a sample",
        ),
        (
            decode,
            {"decoder.0.cross_attention.w_o": real(13, 14)},
            "decoder.0.cross_attention.w_o has shape (13, 14) and must be (heads*d_v, d_model) with heads*d_v=14 as "
            "in decoder.0.cross_attention.w_v: " + LINEAR,
        ),
        (
            translate,
            {"target": IDS[:2]},
            "target has shape (2, 5) and must be (batch, seq) with batch=3 as in source: make the two agree",
        ),
        (translate, {"source": IDS[0]}, "source has shape (5,) and must be (batch, source_seq): reshape it to 2 axes"),
        (
            translate,
            {"w_vocab": real(29, 14)},
            "w_vocab has shape (29, 14) and must be (d_model, vocab) with d_model=14 as in table: " + LINEAR,
        ),
        (
            translate,
            {"b_vocab": real(14)},
            "b_vocab has shape (14,) and must be (vocab) with vocab=29 as in table: make the two agree",
        ),
        (
            translate,
            {"encoder.0.self_attention.w_q": real(12, 14)},
            "encoder.0.self_attention.w_q has shape (12, 14) and must be (d_model, heads*d_k) with d_model=14 as in "
            "table: " + LINEAR,
        ),
        (translate, {"num_encoder_layers": 0}, "num_encoder_layers=0 must be at least 1: pass a positive size"),
        (
            translate,
            {"source": IDS.int(), "pad_id": 2**31},
            "pad_id=2147483648 must fit source of torch.int32, -2147483648 … 2147483647: "
            "pass the id that pads the source, or convert them with source.long()",
        ),
        (
            translate,
            {"target": IDS.to("meta")},
            "target is on meta and must be on the device of table, cpu: move it with target.to('cpu')",
        ),
        (
            lose,
            {"targets": IDS[:, :4]},
            "targets has shape (3, 4) and must be (batch, seq) with seq=5 as in logits: make the two agree",
        ),
        (
            lose,
            {"logits": real(5, 29)},
            "logits has shape (5, 29) and must be (batch, seq, vocab): reshape it to 3 axes",
        ),
        (
            lose,
            {"targets": torch.zeros(3, 5, dtype=torch.int64)},
            "targets hold nothing but pad_id=0 and must hold a word, or there is nothing to average: "
            "leave batches of padding out",
        ),
    ],
)
def test_shapes_and_numbers_that_do_not_fit_are_refused(function, changed, message):
    with refused(ValueError, message):
        function(**changed)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: log_softmax(real(3, 0)), f"scores has shape (3, 0) and must be (..., n) {EMPTY}"),
        (lambda: pad_or_truncate(real(3, 5, 14), 0), "length=0 must be at least 1: pass a positive size"),
        (
            lambda: pad_or_truncate(real(5, 14), 3),
            "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes",
        ),
        (lambda: shift_right(IDS[0], 1), "ids has shape (5,) and must be (batch, seq): reshape it to 2 axes"),
        (
            lambda: shift_right(IDS.int(), -(2**31) - 1),
            "bos_id=-2147483649 must fit ids of torch.int32, -2147483648 … 2147483647: "
            "pass the id that begins these ids, or convert them with ids.long()",
        ),
        (
            lambda: logits(real(3, 5, 14), w_vocab=real(29, 14)),
            "w_vocab has shape (29, 14) and must be (d_model, vocab) with d_model=14 as in x: " + LINEAR,
        ),
        (
            lambda: output_probabilities(real(3, 5, 14), w_vocab=real(14, 29), b_vocab=real(28)),
            "b_vocab has shape (28,) and must be (vocab) with vocab=29 as in w_vocab: make the two agree",
        ),
        (lambda: one_hot(IDS, 0), "vocab=0 must be at least 1: pass a positive size"),
        (
            lambda: label_smoothing(real(3, 5, 29), 1.1),
            "smoothing=1.1 must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent",
        ),
        (
            lambda: label_smoothing(real(3, 5, 29), float("nan")),
            "smoothing=nan must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent",
        ),
        (
            lambda: kl_divergence(real(3, 29), real(3, 28)),
            "logits has shape (3, 28) and must be (..., n) with n=29 as in target: make the two agree",
        ),
        (
            lambda: FeedForward(14, 23, dropout=-0.1),
            "dropout=-0.1 must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent",
        ),
        (lambda: LayerNorm(14, 0.0), "eps=0.0 must be finite and above 0: pass a small number such as 1e-5"),
        (
            lambda: EncoderLayer(14, 4, 23),
            "num_heads=4 does not divide the width 14 of the model, d_model: choose a divisor of 14",
        ),
        (
            lambda: Transformer(29, 14, 2, 1, -1, 23, pad_id=0),
            "num_decoder_layers=-1 must be at least 1: pass a positive size",
        ),
        (
            lambda: EncoderLayer(*SIZES)(real(3, 5, 13)),
            "x has shape (3, 5, 13) and must be (batch, seq, d_model) with d_model=14 as in the module: "
            "make the two agree",
        ),
        (
            lambda: Decoder(*SIZES, 2)(real(3, 5, 14), real(3, 7, 13)),
            "memory has shape (3, 7, 13) and must be (batch, source_seq, d_model) with d_model=14 as in the module: "
            "make the two agree",
        ),
        (
            lambda: DecoderLayer(*SIZES)(real(3, 5, 14), real(3, 7, 14), memory_mask=true(3, 5, 7)),
            "memory_mask has shape (3, 5, 7) and must broadcast to the scores, (batch, heads, seq, source_seq) = "
            "(3, 2, 5, 7): give it size 1 on the axes it repeats along, such as memory_mask[:, None] for all heads "
            "of a sample",
        ),
        (
            lambda: model().decode(IDS, real(3, 6, 14), IDS),
            "memory has shape (3, 6, 14) and must be (batch, source_seq, d_model) with source_seq=5 as in source: "
            "make the two agree",
        ),
        (
            lambda: model().decode(IDS, real(3, 5, 15), IDS),
            "memory has shape (3, 5, 15) and must be (batch, source_seq, d_model) with d_model=14 as in table: "
            "make the two agree",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(function, message):
    with refused(ValueError, message):
        function()


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    [
        (
            encode_layer,
            {"mask": torch.ones(5, 5)},
            f"mask has dtype torch.float32 {BOOLEAN} mask != 0, an additive mask of 0 and -inf with mask == 0",
        ),
        (
            decode_layer,
            {"self_mask": torch.ones(5, 5).long()},
            f"self_mask has dtype torch.int64 {BOOLEAN} self_mask != 0, "
            "an additive mask of 0 and -inf with self_mask == 0",
        ),
        (
            encode_layer,
            {"norm_1.gamma": None},
            "norm_1.gamma is of type NoneType and must be a torch.Tensor: it cannot be left out",
        ),
        (
            translate,
            {"table": None},
            "table is of type NoneType and must be a torch.Tensor: it cannot be left out",
        ),
        (
            decode,
            {"num_layers": 3},
            "decoder.2.self_attention.w_q is of type NoneType and must be a torch.Tensor: it cannot be left out",
        ),
        (encode, {"num_layers": 1}, f"params has 'encoder.1.self_attention.w_q' {NOT_READ}"),
        (encode_layer, {"norm_3.gamma": real(14)}, f"params has 'norm_3.gamma' {NOT_READ}"),
        (translate, {"encoder.0.self_attention.q": real(14)}, f"params has 'encoder.0.self_attention.q' {NOT_READ}"),
        (
            encode_layer,
            {"params": [real(14)]},
            "params is of type list and must map names to tensors: pass a dict, such as the state_dict of the module",
        ),
        (
            encode_layer,
            {"feed_forward.b_2": real(14, dtype=torch.float64)},
            "feed_forward.b_2 has dtype torch.float64 and must have that of x, torch.float32: "
            "convert it with feed_forward.b_2.to(torch.float32)",
        ),
        (
            decode_layer,
            {"memory": real(3, 7, 14, dtype=torch.float64)},
            "memory has dtype torch.float64 and must have that of x, torch.float32: "
            "convert it with memory.to(torch.float32)",
        ),
        (translate, {"norm_first": "pre"}, "norm_first='pre' is of type str and must be a bool: pass True or False"),
        (encode_layer, {"num_heads": 2.0}, "num_heads=2.0 is of type float and must be an int: pass int(num_heads)"),
        (translate, {"pad_id": None}, "pad_id=None is of type NoneType and must be an int: pass int(pad_id)"),
        (
            translate,
            {"source": IDS.float()},
            "source has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with source.long()",
        ),
        (
            translate,
            {"target": [[1]]},
            "target is of type list and must be a torch.Tensor: convert it with torch.as_tensor(target)",
        ),
        (
            lose,
            {"logits": IDS},
            "logits has dtype torch.int64 and must be floating point: convert it with logits.float()",
        ),
        (
            lose,
            {"targets": IDS.float()},
            "targets has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with targets.long()",
        ),
        (normalise, {"eps": "1e-5"}, "eps='1e-5' is of type str and must be a float: pass float(eps)"),
        (normalise, {"eps": True}, "eps=True is of type bool and must be a float: pass float(eps)"),
        (feed, {"w_2": None}, "w_2 is of type NoneType and must be a torch.Tensor: it cannot be left out"),
    ],
)
def test_wrong_kinds_are_refused(function, changed, message):
    with refused(TypeError, message):
        function(**changed)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda: label_smoothing(one_hot(IDS, 29), 0.1),
            "target has dtype torch.int64 and must be floating point: convert it with target.float()",
        ),
        (
            lambda: label_smoothing(real(3, 5, 29), "0.1"),  # type: ignore[arg-type]
            "smoothing='0.1' is of type str and must be a float: pass float(smoothing)",
        ),
        (
            lambda: one_hot(IDS.float(), 29),
            "ids has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with ids.long()",
        ),
        (
            lambda: pad_or_truncate(real(3, 5, 14), 4.0),  # type: ignore[arg-type]
            "length=4.0 is of type float and must be an int: pass int(length)",
        ),
        (
            lambda: shift_right(IDS, "1"),  # type: ignore[arg-type]
            "bos_id='1' is of type str and must be an int: pass int(bos_id)",
        ),
        (
            lambda: kl_divergence(real(3, 29).double(), real(3, 29)),
            "logits has dtype torch.float32 and must have that of target, torch.float64: "
            "convert it with logits.to(torch.float64)",
        ),
        (
            lambda: DecoderLayer(*SIZES, norm_first=None),
            "norm_first=None is of type NoneType and must be a bool: pass True or False",
        ),
        (
            lambda: EncoderLayer(*SIZES, dropout=None),
            "dropout=None is of type NoneType and must be a float: pass float(dropout)",
        ),
        (
            lambda: Transformer(29, 14, 2, 1, 1, 23, pad_id="<pad>"),  # type: ignore[arg-type]
            "pad_id='<pad>' is of type str and must be an int: pass int(pad_id)",
        ),
        (
            lambda: model().decode(IDS, real(3, 5, 14, dtype=torch.float64), IDS),
            "memory has dtype torch.float64 and must have that of table, torch.float32: "
            "convert it with memory.to(torch.float32)",
        ),
    ],
)
def test_wrong_kinds_are_refused_elsewhere_too(function, message):
    with refused(TypeError, message):
        function()


@pytest.mark.parametrize(("wrong", "position"), [(29, [0, 1]), (-1, [2, 0])])
def test_the_first_id_outside_the_vocabulary_is_named(wrong, position):
    ids = IDS.clone()
    ids[tuple(position)] = wrong
    outside = f"{position}={wrong} must lie in 0 … 28"
    table = "the rows of table: use the vocabulary that the table was made for, or a longer table"

    for name in ("source", "target"):
        with refused(IndexError, f"{name}{outside}, {table}"):
            translate(**{name: ids})
        with refused(IndexError, f"{name}{outside}, {table}"):
            model()(**{"source": IDS, "target": IDS, name: ids})
    words = "the words: use the vocabulary that the ids were made with, or a larger vocab"
    with refused(IndexError, f"ids{outside}, {words}"):
        one_hot(ids, 29)
    words = "the words of logits: use the vocabulary of the model, or the pad_id that pads these targets"
    with refused(IndexError, f"targets{outside}, {words}"):
        lose(targets=ids)
    # Unless it is what pads.
    assert lose(targets=ids, pad_id=wrong)[0].isfinite()
