"""How decoding refuses: every sentence says what it got, what it must be and what to do."""

import re
from typing import Any

import pytest
import torch

from goldformer.reference_impl import Transformer, beam_search, greedy_decode

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0], [9, 0, 0, 0, 0]])
WORDS = {"bos_id": 1, "eos_id": 2, "max_length": 3}
BEAMS = {"beam_size": 3, "top_beams": 2}
TABLE = "the rows of table: use the vocabulary that the table was made for, or a longer table"
OF_BEAMS = ("beam_size", "top_beams", "finish", "length_penalty")


def model() -> Transformer:
    return Transformer(29, 14, 2, 1, 2, 23, pad_id=0)


def function(of_beams: bool, changed: dict[str, Any]) -> Any:
    counts = {"num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2, "pad_id": 0}
    given = {"source": IDS, **counts, **WORDS, "params": model().state_dict()}
    return beam_search(**{**given, **BEAMS, **changed}) if of_beams else greedy_decode(**{**given, **changed})


def method(of_beams: bool, changed: dict[str, Any]) -> Any:
    given = {"source": IDS, **WORDS}
    return model().beam_search(**{**given, **BEAMS, **changed}) if of_beams else model().greedy_decode(
        **{**given, **changed}
    )  # fmt: skip


def every_way(changed: dict[str, Any]) -> list[tuple[Any, bool]]:
    """The calls that take the arguments that are changed: functions and methods, greedy and with beams."""
    calls = [function] if any(name in changed for name in ("params", "num_decoder_layers", "pad_id")) else [
        function, method
    ]  # fmt: skip
    return [(call, beams) for call in calls for beams in (True, False) if beams or not set(changed) & set(OF_BEAMS)]


def refused(error: type[Exception], message: str, changed: dict[str, Any]) -> None:
    for call, beams in every_way(changed):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            call(beams, changed)


def test_the_calls_below_are_accepted_unchanged():
    for call, beams in every_way({}):
        call(beams, {})
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
def test_shapes_and_numbers_that_do_not_fit_are_refused(changed, message):
    refused(ValueError, message, changed)


@pytest.mark.parametrize("name", ["bos_id", "eos_id", "max_length", "beam_size", "top_beams", "pad_id"])
@pytest.mark.parametrize(("value", "kind"), [(True, "bool"), (1.0, "float"), (None, "NoneType"), ("1", "str")])
def test_what_is_no_int_is_refused(name, value, kind):
    message = f"{name}={value!r} is of type {kind} and must be an int: pass int({name})"
    refused(TypeError, message, {name: value})


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
            "leave it out, or mend its spelling or the number of layers",
        ),
    ],
)
def test_wrong_kinds_are_refused(changed, message):
    refused(TypeError, message, changed)


@pytest.mark.parametrize("wrong", [29, -1])
def test_ids_outside_the_vocabulary_are_refused(wrong):
    source = IDS.clone()
    source[1, 2] = wrong
    refused(IndexError, f"source[1, 2]={wrong} must lie in 0 … 28, {TABLE}", {"source": source})
    for name, does in (("bos_id", "begins what the decoder reads"), ("eos_id", "ends a sentence")):
        message = f"{name}={wrong} must lie in 0 … 28, the rows of table: pass the id that {does}"
        refused(IndexError, message, {name: wrong})
