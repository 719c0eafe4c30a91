"""Arrays and messages to bytes and back: exactly, and with an error that says what does not fit."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
import torch

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.dtypes import NUMPY_DTYPES, WireArray, round_to_dtype
from goldformer.adapters.process import wire
from goldformer.adapters.process.faults import TooLarge, WireError
from goldformer.adapters.process.messages import ENCODINGS, MAX_ELEMENTS, MAX_MESSAGE
from goldformer.adapters.process.wire import (
    BadRequest,
    decode_array,
    decode_arrays,
    encode_arguments,
    encode_array,
    error_line,
    from_line,
    read_reply,
    read_request,
    request_line,
    to_line,
)

FLOATS = {
    "float64": [0.1, -0.0, math.pi, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, 2.0**53 + 2],
    "float32": [0.1, -0.0, math.pi, 1e-45, 3.4e38, math.inf, -math.inf, math.nan, 16777216.0],
    "float16": [0.1, -0.0, math.pi, 6e-8, 65504.0, math.inf, -math.inf, math.nan, 2048.0],
    "bfloat16": [0.1, -0.0, math.pi, 1e-40, 3.38e38, math.inf, -math.inf, math.nan, 256.0],
}
ARRAYS = {
    **{dtype: WireArray(dtype, round_to_dtype(np.array(values), dtype)) for dtype, values in FLOATS.items()},
    "int64": WireArray("int64", np.array([[0, -1, 2**63 - 1], [7, -(2**63), 2**53 + 1]])),
    "bool": WireArray("bool", np.array([[[True]], [[False]]])),
    "one number": WireArray("float32", np.array([2.5], np.float32).reshape(())),
    "nothing": WireArray("float64", np.zeros((3, 0, 2))),
    "a view": WireArray("float32", np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_bit_for_bit(name, encoding):
    array = ARRAYS[name]
    sent = json.loads(to_line({"it": encode_array(array, encoding)}))["it"]
    back = decode_array(sent, "it")
    assert (back.dtype, back.shape, back.values.dtype) == (
        array.dtype,
        array.shape,
        np.dtype(NUMPY_DTYPES[array.dtype]),
    )
    assert back.values.tobytes() == np.ascontiguousarray(array.values).tobytes()


def test_base64_is_of_the_little_endian_bytes():
    assert encode_array(WireArray("float32", np.array([1, -2], np.float32)), "base64")["data"] == "AACAPwAAAMA="
    assert encode_array(WireArray("bfloat16", np.array([1, -2], np.float32)), "base64")["data"] == "gD8AwA=="
    assert encode_array(WireArray("float16", np.array([1], np.float16)), "base64")["data"] == "ADw="
    assert encode_array(WireArray("int64", np.array([258])), "base64")["data"] == "AgEAAAAAAAA="
    assert encode_array(WireArray("bool", np.array([True, False])), "base64")["data"] == "AQA="


def test_numbers_are_flat_and_have_all_digits():
    sent = encode_array(WireArray("float32", np.array([[0.1, math.nan], [-math.inf, 3]], np.float32)), "numbers")
    assert sent == {"dtype": "float32", "shape": [2, 2], "data": [0.10000000149011612, "NaN", "-Infinity", 3.0]}
    assert encode_array(ARRAYS["bool"], "numbers")["data"] == [True, False]


@pytest.mark.parametrize("dtype", FLOATS)
def test_decimals_are_rounded_to_the_nearest_as_torch_does(dtype):
    decimals = [0.1, 1 / 3, -2.7182818284590452, 1e-5, 12345.678]
    got = decode_array({"dtype": dtype, "shape": [5], "data": decimals}, "x").values
    want = torch.tensor(decimals, dtype=torch.float64).to(getattr(torch, dtype)).double().numpy()
    assert got.astype(np.float64).tolist() == want.tolist()


def test_bfloat16_is_rounded_once_and_half_to_even():
    bit = 2.0**-7  # between neighbours above 1
    beyond_float32 = 2.0**-40
    cases = {
        1 + bit / 2: 1.0,
        1 + 3 * bit / 2: 1 + 2 * bit,
        1 + bit / 2 + beyond_float32: 1 + bit,  # rounding to float32 first would make it a tie
        1 + 3 * bit / 2 - beyond_float32: 1 + bit,
        -(1 + bit / 2 + beyond_float32): -(1 + bit),
        3.3895314e38: 3.3895313892515355e38,
        3.4e38: math.inf,
        -1e300: -math.inf,
        2.0**-134: 0.0,
        1.5 * 2.0**-133: 2.0**-132,
    }
    got = round_to_dtype(np.array(list(cases)), "bfloat16")
    assert got.astype(np.float64).tolist() == list(cases.values())
    assert np.isnan(round_to_dtype(np.array([math.nan]), "bfloat16")).all()
    assert round_to_dtype(np.array(0.1), "bfloat16").shape == ()


def test_the_library_of_arrays_that_are_sent():
    wire = LIBRARIES["process"]
    made = wire.make(np.array([0.1, np.nan]), "bfloat16", "cpu")
    assert wire.is_array(made)
    assert not wire.is_array(np.zeros(2))
    assert (wire.dtype(made), wire.device(made), made.shape) == ("bfloat16", "cpu", (2,))
    assert wire.numpy(made).dtype == np.float64
    assert wire.numpy(made)[0] == 0.10009765625
    assert wire.same(made, wire.make(np.array([0.1, np.nan]), "bfloat16", "cpu"))
    assert not wire.same(made, wire.make(np.array([0.2, np.nan]), "bfloat16", "cpu"))
    assert not wire.same(made, wire.make(np.array([0.1, np.nan]), "float32", "cpu"))
    assert wire.make(np.array([True]), "float32", "cpu").dtype == "bool"
    assert wire.make(np.array([3]), "float32", "cpu").dtype == "int64"
    assert wire.differentiate(lambda leaves: None, {}, made) is None
    assert wire.unavailable("cpu") is None
    assert wire.unavailable("cuda") == "an implementation in another process gets no arrays on cuda"


# Arrays that are none

GOOD = {"dtype": "float32", "shape": [2], "data": [1, 2]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([1, 2], "x is [1, 2], expected an object"),
        (None, "x is null, expected an object of dtype, shape, data"),
        ({"dtype": "float32", "shape": [2]}, "x.data is missing"),
        ({**GOOD, "order": "C"}, "x.order is not part of the protocol; x has dtype, shape, data"),
        ({**GOOD, "dtype": "double"}, 'x.dtype is "double", expected "float64", "float32", "float16", "bfloat16", '
         '"int64" or "bool"'),
        ({**GOOD, "shape": 2}, "x.shape is 2, expected a list"),
        ({**GOOD, "shape": [2.0]}, "x.shape[0] is 2.0, expected an integer; an integer is written without a fraction"),
        ({**GOOD, "shape": [True]}, "x.shape[0] is true, expected an integer"),
        ({**GOOD, "shape": [-2]}, "x.shape[0] is -2, expected greater than or equal to 0"),
        ({**GOOD, "shape": [1] * 9}, "x.shape is [1, 1, 1, ...], expected at most 8 elements"),
        (
            {"dtype": "float32", "shape": [0, *[1 << 24] * 7], "data": ""},
            f"x.shape is [0, 16777216, 16777216, ...]: its axes other than 0 span {1 << 168} elements, "
            "at most 16777216 can be shaped",
        ),
        ({**GOOD, "shape": [3]}, "x.data has 2 elements, the shape [3] has 3"),
        ({**GOOD, "shape": []}, "x.data has 2 elements, the shape [] has 1"),
        ({**GOOD, "data": {"0": 1}}, 'x.data is {"0": 1}, expected a list of numbers or a string of base64'),
        ({**GOOD, "data": [[1, 2]], "shape": [1]}, 'x.data[0] is [1, 2], expected a number or one of "NaN", '
         '"Infinity" and "-Infinity"'),
        ({**GOOD, "data": [1, True]}, "x.data[1] is true, expected a number"),
        ({**GOOD, "data": [1, None]}, "x.data[1] is null, expected a number"),
        ({**GOOD, "data": [1, "nan"]}, 'x.data[1] is "nan", expected a number'),
        ({**GOOD, "data": [1, 1e300]}, 'x.data[1] is beyond float32: an infinity is written "Infinity"'),
        ({**GOOD, "data": ["NaN", -1e39]}, "x.data[1] is beyond float32"),
        ({**GOOD, "data": [float("inf"), "Infinity"]}, "x.data[0] is beyond float32"),
        ({**GOOD, "data": [1, 10**400]}, "x.data holds a number beyond float64"),
        ({**GOOD, "dtype": "float16", "data": [0, 70000]}, "x.data[1] is beyond float16"),
        ({**GOOD, "dtype": "bfloat16", "data": [0, 3.4e38]}, "x.data[1] is beyond bfloat16"),
        ({**GOOD, "dtype": "bool"}, "x.data[0] is 1, expected true or false"),
        ({**GOOD, "dtype": "int64", "data": [1, 2.0]}, "x.data[1] is 2.0, expected an integer"),
        ({**GOOD, "dtype": "int64", "data": [1, True]}, "x.data[1] is true, expected an integer"),
        ({**GOOD, "dtype": "int64", "data": [1, 2**63]}, "x.data[1] is 9223372036854775808, expected an integer of 64"),
        ({**GOOD, "data": "AACAPw=="}, "x.data holds 4 bytes, 2 elements of float32 take 8"),
        ({**GOOD, "data": "AACA*w=="}, "x.data is 'AACA*w==', expected base64: "),
        ({**GOOD, "data": "AACAPwAAgD8====="}, "x.data is 'AACAPwAAgD8=====', expected base64: "),
        ({**GOOD, "shape": [3], "data": "AACAPwAAgD8AAIA/===="}, "expected base64: "),
        ({**GOOD, "data": "AACAé"}, "x.data is 'AACAé', expected base64: "),
        ({**GOOD, "dtype": "bool", "data": "AQI="}, "x.data holds the byte 2, a bool is 0 or 1"),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused_by_field(value, says):
    with pytest.raises(WireError) as error:
        decode_array(value, "x")
    assert says in str(error.value)


def test_an_array_beyond_the_limit_is_refused_before_it_is_made():
    with pytest.raises(
        TooLarge, match=r"^x.shape is \[4096, 8192\]: 33554432 elements, an array has 16777216 at most$"
    ):
        decode_array({"dtype": "float64", "shape": [4096, 8192], "data": ""}, "x")
    many = np.broadcast_to(np.float64(0), (MAX_ELEMENTS + 1,))
    with pytest.raises(TooLarge, match="an array of 16777217 elements is sent; an array has 16777216 at most"):
        encode_array(WireArray("float64", many), "base64")


@pytest.mark.parametrize("shape", [[0], [0, MAX_ELEMENTS], [4096, 0, 4096], [0] * 8, [MAX_ELEMENTS, 1, 0, 1, 1]])
@pytest.mark.parametrize("data", [[], ""])
def test_an_array_without_elements_has_its_lengths_within_the_limit(shape, data):
    assert decode_array({"dtype": "float64", "shape": shape, "data": data}, "x").shape == tuple(shape)


def test_arguments_beyond_the_limit_are_refused_before_they_are_made():
    many = WireArray("float64", np.broadcast_to(np.float64(0), (MAX_ELEMENTS,)))
    with pytest.raises(TooLarge, match=r"^the arrays take 171 MiB; a message holds 64 MiB at most$"):
        encode_arguments({"params": {"table": many}}, "base64")


def test_arguments_are_arrays_mappings_of_arrays_and_plain_numbers():
    array = WireArray("int64", np.array([1]))
    sent = {"dtype": "int64", "shape": [1], "data": [1]}
    given = {"ids": array, "params": {"w": array}, "rate": 0.5, "causal": True, "steps": 3}
    assert json.loads(encode_arguments(given, "numbers")) == {**given, "ids": sent, "params": {"w": sent}}


def test_an_array_that_is_sent_again_is_not_encoded_again(monkeypatch):
    encoded = []

    def record(array, encoding):
        encoded.append(array.dtype)
        return encode_array(array, encoding)

    monkeypatch.setattr(wire, "encode_array", record)
    given = {"x": ARRAYS["float32"], "params": {"w": WireArray("int64", np.array([1]))}}
    first = encode_arguments(given, "base64")
    assert encode_arguments(given, "base64") == first
    assert encoded.count("int64") == 1
    assert json.loads(encode_arguments(given, "numbers"))["params"]["w"]["data"] == [1]


def test_results_are_arrays_by_name():
    with pytest.raises(WireError, match=r"^result is \[\], expected an object of arrays by name$"):
        decode_arrays([], "result")
    with pytest.raises(WireError, match=r"^result has the key 'a\\x1b', which is no name$"):
        decode_arrays({"a\x1b": {}}, "result")
    with pytest.raises(WireError, match=r"^result is an array, expected an object of arrays by name, even where"):
        decode_arrays({"data": [1], "shape": [1], "dtype": "float32"}, "result")
    with pytest.raises(WireError, match=r"^result\.weights\.dtype is missing$"):
        decode_arrays({"weights": {}}, "result")


def test_a_result_of_too_many_names_is_refused_before_it_is_decoded():
    """30,000 outputs took 24 seconds."""
    with pytest.raises(WireError, match=r"^result has 30000 names, expected at most 2; the first are a0, a1, a2$"):
        decode_arrays({f"a{i}": None for i in range(30_000)}, "result", 2)
    array = {"dtype": "bool", "shape": [], "data": [True]}
    assert decode_arrays({"output": array, "weights": array}, "result", 2).keys() == {"output", "weights"}


# Messages that are none


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


def many_names(count, last):
    """An object of so many names, and then others."""
    return b"{" + b"".join(b'"a%d":1,' % number for number in range(count)) + last + b"}"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "the message is not JSON: ''"),
        (b"{}{}", "the message is not JSON: Extra data"),
        (b'{"a":1', "the line ends within the message: a message is one line: '{\"a\":1'"),
        (b"{\r\n", "the line ends within the message: a message is one line: '{'"),
        (b'{"a":1 "b":2}', "not JSON: Expecting ',' delimiter at character 7: '\"b\":2}' after '{\"a\":1 '"),
        (b'{"a":[0,inf]}', 'inf is no number in JSON: write "Infinity", a string'),
        (b'{"a":[0,-inf]}', '-inf is no number in JSON: write "-Infinity", a string'),
        (b'{"a":[-nan]}', '-nan is no number in JSON: write "NaN", a string'),
        (b'{"a":[info]}', "not JSON: Expecting value at character 6: 'info]}' after '{\"a\":['"),
        (b"\xff{}", "the message is not UTF-8 (byte 0 is 0xff)"),
        (b"\xef\xbb\xbf{}", "the message begins with a byte order mark: write UTF-8 without one"),
        ('{"a":1}'.encode("utf-16"), "the message is not UTF-8 (byte 0 is 0xff)"),
        (b"[1]", "the message is [1], expected an object"),
        (b'{"a":NaN}', 'NaN is no number in JSON: write "NaN", a string'),
        (b'{"a":-Infinity}', '-Infinity is no number in JSON: write "-Infinity", a string'),
        (b'{"a":1,"b":{"c":1,"c":2}}', "the message has the key 'c' twice in one object"),
        (b'{"a":' + b"9" * 5000 + b"}", "the message is not JSON: Exceeds the limit (4300 digits)"),
        (nested(17), "the message is nested more than 16 deep"),
        (nested(100_000), "the message is nested more than 16 deep"),
        (b"[" * 100_000, "the message is nested more than 16 deep"),
        (b"[" * 1_000_000, "the message has more than 100000 lists and objects"),
        (b'{"a":[' + b"[]," * 100_000 + b"[]]}", "the message has more than 100000 lists and objects"),
        (b'{"a":' + b"[" * 16 + b"]" * 16 + b"}", "the message is nested more than 16 deep"),
        (b'{"a":"' + b":" * 1_000_000 + b'"}', "the message has more than 1000000 names"),
        # Looking at all others for each of them would take days.
        (many_names(900_000, b'"z":1,"z":2'), "the message has the key 'z' twice in one object"),
    ],
    ids=range(25),
)
def test_what_is_no_message_is_refused(line, says):
    with pytest.raises(WireError) as error:
        from_line(line)
    assert says in str(error.value)
    assert len(str(error.value)) < 300


def test_of_a_million_names_that_no_array_has_one_is_told():
    line = many_names(900_000, b'"shape":[],"data":[]')
    started = time.process_time()
    message = from_line(line)
    read = time.process_time()
    with pytest.raises(WireError, match=r"^result\.a0 is not part of the protocol; result has dtype, shape, data$"):
        decode_array(message, "result")
    # Naming all of them takes a gigabyte, and many times as long as reading them.
    assert time.process_time() - read < 2 * (read - started)


def test_a_message_at_the_limit_of_depth_is_read():
    assert from_line(nested(16) + b"\r\n")["a"]


def test_a_message_beyond_the_limit_of_size_is_neither_read_nor_written():
    with pytest.raises(TooLarge, match="the message has more than 64 MiB, the most that a message holds"):
        from_line(b" " * (MAX_MESSAGE + 1))
    with pytest.raises(TooLarge, match="the message has 64 MiB; a message holds 64 MiB at most"):
        to_line({"a": "a" * MAX_MESSAGE})


def test_a_message_is_one_line_whatever_it_says():
    line = to_line({"a": "one\ntwo\r\u2028é \udc80"})
    assert line.count(b"\n") == 1
    assert from_line(line) == {"a": "one\ntwo\r\u2028é \udc80"}


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ('{"id":3,"result":null}', "jsonrpc is missing, expected " '"2.0"'),
        ('{"jsonrpc":2.0,"id":3,"result":null}', "jsonrpc is 2.0, expected " '"2.0"'),
        ('{"jsonrpc":"2.0","result":null}', "id is missing, expected 3, that of the request"),
        ('{"jsonrpc":"2.0","id":"3","result":null}', 'id is "3", expected 3, that of the request'),
        ('{"jsonrpc":"2.0","id":true,"result":null}', "id is true, expected 3, that of the request"),
        (
            '{"jsonrpc":"2.0","id":3.0,"result":null}',
            "id is 3.0, expected 3, that of the request; an integer is written without a fraction",
        ),
        ('{"jsonrpc":"2.0","id":null,"result":null}', "id is null, expected 3, that of the request"),
        ('{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":""}}', "id is 2, expected 3, that of the request"),
        ('{"jsonrpc":"2.0","id":3}', "the reply has neither a result nor an error; it has ['jsonrpc', 'id']"),
        ('{"jsonrpc":"2.0","id":3,"result":1,"at":2}', "the reply has the key 'at'; its keys are jsonrpc, id, result"),
        ('{"jsonrpc":"2.0","id":3,"error":"oh"}', 'error is "oh", expected an object of code, message, data'),
        ('{"jsonrpc":"2.0","id":3,"error":{"message":""}}', "error.code is missing"),
        ('{"jsonrpc":"2.0","id":3,"error":{"code":"1","message":""}}', 'error.code is "1", expected an integer'),
    ],
)  # fmt: skip
def test_what_is_no_reply_is_refused(reply, says):
    with pytest.raises(WireError) as error:
        read_reply(reply.encode(), 3)
    assert says in str(error.value)


def test_a_reply_is_a_result_or_an_error():
    assert read_reply(b'{"jsonrpc":"2.0","id":3,"result":{"a":1}}', 3) == {"a": 1}
    error = read_reply(error_line(3, -32602, "scores: bad", "line 7"), 3)
    assert (error.code, error.message, error.data) == (-32602, "scores: bad", "line 7")


@pytest.mark.parametrize(
    ("request_", "code", "id_", "says"),
    [
        ("hello", -32700, None, "the message is not JSON"),
        ("[]", -32700, None, "the message is [], expected an object"),
        ('{"jsonrpc":"2.0","method":"softmax"}', -32600, None, "id is missing, expected an integer of at least 0"),
        ('{"jsonrpc":"2.0","id":-1,"method":"softmax"}', -32600, None, "id is -1, expected an integer of at least 0"),
        ('{"jsonrpc":"2.0","id":"a","method":"softmax"}', -32600, None, 'id is "a", expected an integer'),
        ('{"jsonrpc":"1.0","id":4,"method":"softmax"}', -32600, 4, 'jsonrpc is "1.0", expected "2.0"'),
        ('{"jsonrpc":"2.0","id":4}', -32600, 4, "method is missing, expected the name of a component, initialize or"),
        ('{"jsonrpc":"2.0","id":4,"method":"softmax","params":[1]}', -32600, 4, "params is [1], expected an object of"),
        ('{"jsonrpc":"2.0","id":4,"method":"a","result":1}', -32600, 4, "the request has the key 'result'; its keys"),
    ],
)
def test_what_is_no_request_is_refused_with_its_code(request_, code, id_, says):
    with pytest.raises(BadRequest) as error:
        read_request(request_.encode())
    assert (error.value.code, error.value.id) == (code, id_)
    assert says in str(error.value)


def test_a_request_is_read_as_it_was_written():
    request = read_request(request_line(7, "softmax", {"scores": 1}))
    assert (request.id, request.method, request.params) == (7, "softmax", {"scores": 1})
    assert read_request(b'{"jsonrpc":"2.0","id":0,"method":"shutdown"}').params == {}
