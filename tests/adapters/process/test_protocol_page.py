"""docs/protocol.md is true: its conversation is replayed, its messages fit the schema, its numbers are the limits."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter, ValidationError

from goldformer.adapters import find_adapter
from goldformer.adapters.process import TIMEOUT, client, messages
from goldformer.adapters.process.faults import WireError
from goldformer.adapters.process.server import Server, serve
from goldformer.adapters.process.wire import BadRequest, decode_array, encode_array, from_line, read_reply, read_request
from goldformer.conformance.cli import main
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import UNANSWERED, WITHIN_LIMITS, Status
from repository import REPOSITORY
from rpc import Answered

DOCS = REPOSITORY / "docs"
PAGE = (DOCS / "protocol.md").read_text(encoding="utf-8")
CONVERSATION = re.findall(r"^→ (.*)\n← (.*)$", PAGE, re.MULTILINE)
REQUESTS = [sent for sent, _ in CONVERSATION if sent.startswith("{")]
REPLIES = [got for _, got in CONVERSATION]
JSON = [line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
HANDSHAKES = [line for line in JSON if "jsonrpc" in line]
ARRAYS = [json.loads(line) for line in JSON if "jsonrpc" not in line]
ANY_REQUEST, ANY_REPLY = TypeAdapter(messages.AnyRequest), TypeAdapter(messages.AnyReply)


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """The command of the program that the page ends with."""
    (source,) = re.findall(r"```python\n(# by_hand\.py\n.*?)```", PAGE, re.DOTALL)
    path = tmp_path_factory.mktemp("page") / "by_hand.py"
    path.write_text(source, encoding="utf-8")
    return [sys.executable, "-S", str(path)]


def alike(got, wanted):
    """Return True if two messages are equal: numbers up to the last digits, and … stands for anything."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and got.keys() == wanted.keys() and all(alike(got[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(alike, got, wanted))
    if isinstance(wanted, float):
        return got == pytest.approx(wanted, rel=1e-14)
    if isinstance(wanted, str) and wanted.endswith("…"):
        return got.startswith(wanted.rstrip(" …"))
    return (type(got), got) == (type(wanted), wanted)


def test_the_conversation_is_what_the_program_says(by_hand):
    lines = "".join(f"{sent}\n" for sent, _ in CONVERSATION)
    done = subprocess.run(by_hand, input=lines, capture_output=True, text=True, timeout=30, check=True)
    got = done.stdout.splitlines()
    assert len(got) == len(CONVERSATION) == 11
    for line, (sent, wanted) in zip(got, CONVERSATION, strict=True):
        assert alike(json.loads(line), json.loads(wanted)), sent


def served_by_the_textbook(line):
    words = [str(Path(sys.executable).with_name("goldformer")), "serve", "textbook", "--encoding", "numbers"]
    return subprocess.run(words, input=f"{line}\n", capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_line_to_try_by_hand_gives_what_the_page_says(by_hand):
    (command, printed) = re.search(r"^\$ (printf .*) \| python3 by_hand\.py\n(\{.*)$", PAGE, re.MULTILINE).groups()
    line = shlex.split(command)[2]
    done = subprocess.run(by_hand, input=f"{line}\n", capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == f"{printed}\n"
    served = served_by_the_textbook(line)
    assert json.loads(served) == json.loads(printed)


def test_the_program_of_the_page_conforms(by_hand, spec):
    adapter = find_adapter("cmd: " + shlex.join(by_hand), spec, 30)
    bench = Bench(spec, adapter, "float64", "cpu", Policy(strict=True))
    components = ("softmax", "token_embedding")
    cases = [c for name in components for c in spec.cases_of(name) if not c.full_size and not c.only_with]
    # Its softmax is plain Python, which takes seconds for real sizes.
    cases = [c for c in cases if (c.cotangent is None or c.component == "softmax") and not c.is_computed]
    verdicts = [check_case(case, bench) for case in cases]
    adapter.close()
    assert [(v.check, v.message) for v in verdicts if v.status is not Status.PASSED] == []
    assert len(verdicts) > 15


def test_the_suite_sends_just_what_the_page_shows(spec, by_hand, monkeypatch):
    """The first two requests of the page, byte for byte, are those of a run of the case that they are of."""
    sent = []
    replies = dict(zip(REQUESTS, REPLIES[: len(REQUESTS)], strict=True))

    def answer(line):
        sent.append(line.decode().rstrip("\n"))
        return replies[sent[-1]].encode() + b"\n"

    monkeypatch.setattr(client, "Child", lambda words: Answered(answer))
    bench = Bench(spec, find_adapter("cmd: none", spec), "float64", "cpu")
    assert check_case(spec.cases["sm-one-row-by-hand"], bench).status is Status.PASSED
    assert sent == REQUESTS[:2]


@pytest.mark.parametrize("line", REQUESTS, ids=range(len(REQUESTS)))
def test_a_request_of_the_page_is_one(line):
    assert read_request(line.encode()).method
    ANY_REQUEST.validate_json(line)


@pytest.mark.parametrize("line", [*REPLIES, *HANDSHAKES], ids=range(len(REPLIES) + len(HANDSHAKES)))
def test_a_reply_of_the_page_is_one(line):
    ANY_REPLY.validate_json(line)
    read_reply(line.encode(), json.loads(line)["id"] or 0)


def test_what_is_no_message_does_not_fit_the_models():
    (no_message,) = [sent for sent, _ in CONVERSATION if sent not in REQUESTS]
    with pytest.raises(BadRequest):
        read_request(no_message.encode())
    for line in (*REQUESTS, *REPLIES):
        message = json.loads(line)
        for key in message:
            if key == "params" and message["method"] == "shutdown":
                continue
            less = json.dumps({k: v for k, v in message.items() if k != key})
            model = ANY_REQUEST if "method" in message else ANY_REPLY
            with pytest.raises(ValidationError):
                model.validate_json(less)
            with pytest.raises(ValidationError):
                model.validate_json(json.dumps({**message, f"{key}_": 1}))


def test_a_handshake_with_conventions_is_taken(spec, monkeypatch):
    (line,) = HANDSHAKES
    monkeypatch.setattr(client, "Child", lambda words: Answered(lambda sent: line.encode()))
    adapter = find_adapter("cmd: none", spec)
    assert (adapter.name, adapter.version) == ("MyAttention", "1.0")
    assert adapter.convention("empty_row", "scaled_dot_product_attention", spec) == "zeros"
    assert adapter.convention("empty_row", "multi_head_attention", spec) == "nan"


@pytest.mark.parametrize("pair", range(len(ARRAYS) // 2))
def test_numbers_and_base64_of_the_page_are_the_same_arrays(pair):
    numbers, base64 = ARRAYS[2 * pair], ARRAYS[2 * pair + 1]
    one, other = decode_array(numbers, "it"), decode_array(base64, "it")
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert np.array_equal(one.values, other.values, equal_nan=one.values.dtype.kind == "f")
    assert (encode_array(one, "numbers"), encode_array(one, "base64")) == (numbers, base64)


def test_every_dtype_is_shown():
    assert {array["dtype"] for array in ARRAYS} == set(get_args(messages.WireDType))


# What the page says in words


def test_the_limits_of_the_page_are_those_in_force():
    assert messages.MAX_MESSAGE == 64 * 2**20
    assert messages.MAX_ELEMENTS == 2**24
    assert "| a message | 64 MiB, its line break included |" in PAGE
    assert f"| nesting | {messages.MAX_DEPTH} deep; the message itself is the first |" in PAGE
    assert f"| lists and objects in a message | {messages.MAX_INNER:,} |" in PAGE
    assert f"| names in a message | {messages.MAX_NAMES:,} |" in PAGE
    assert f"| an array | {messages.MAX_AXES} axes and 2²⁴ elements, lengths of 0 not counted |" in PAGE
    assert f"| a call, and the handshake | {TIMEOUT:.0f} seconds;" in PAGE
    assert f"This page is version {messages.PROTOCOL} of the protocol." in PAGE


def test_every_field_of_the_handshake_and_every_fault_has_a_row():
    table = PAGE.partition("| field of the result |")[2].partition("\n\n")[0]
    named = {name for row in re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE) for name in row.split(", ")}
    assert named == set(messages.Handshake.model_fields)
    faults = re.findall(r"\| (\w+) \|$", PAGE.partition("| what happens | reason |")[2], re.MULTILINE)
    assert set(faults) == set(UNANSWERED) - set(WITHIN_LIMITS)


def test_every_code_has_a_row():
    codes = {int(code) for code in re.findall(r"-32\d{3}", PAGE.partition("| code | meaning |")[2].split("###")[0])}
    known = {messages.PARSE_ERROR, messages.INVALID_REQUEST, messages.METHOD_NOT_FOUND, messages.INVALID_PARAMS}
    assert codes == known | {messages.NOT_IMPLEMENTED}


def nested(depth):
    """A message in which objects and lists are so many deep, itself counted, in turns."""
    inside: Any = {"a": 1} if depth % 2 else [1]
    for level in range(depth - 1, 0, -1):
        inside = {"a": inside} if level % 2 else [inside]
    return json.dumps(inside).encode()


def test_the_message_is_the_first_level_of_nesting():
    assert nested(1) == b'{"a": 1}'
    assert from_line(nested(messages.MAX_DEPTH))
    with pytest.raises(WireError, match=f"nested more than {messages.MAX_DEPTH} deep"):
        from_line(nested(messages.MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("dtype", "largest"), [("float64", 1.7976931348623157e308), ("float32", 3.4028235e38), ("float16", 65504.0)]
)
def test_what_is_beyond_a_dtype_is_refused_and_its_strings_are_taken(dtype, largest):
    assert "such as `1e39` in float32 or `1e400`, is refused" in PAGE
    strings = ["NaN", "Infinity", "-Infinity", largest]
    values = decode_array({"dtype": dtype, "shape": [4], "data": strings}, "it").values
    assert np.isnan(values[0])
    assert values[1:3].tolist() == [np.inf, -np.inf]
    assert np.isfinite(values[3])
    beyond = {"float64": "1e400", "float32": "1e39", "float16": "65520"}[dtype]
    for sign in ("", "-"):
        sent = json.loads(f'{{"dtype":"{dtype}","shape":[1],"data":[{sign}{beyond}]}}')
        with pytest.raises(WireError, match=rf'it.data\[0\] is beyond {dtype}: an infinity is written "Infinity"'):
            decode_array(sent, "it")


def answers(by_hand, spec, *lines):
    """Return the answers to lines of the page's program, and those of our own server."""
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(by_hand, input=text, capture_output=True, text=True, timeout=30, check=True)
    server = Server(find_adapter("textbook", spec), spec, "numbers")
    return [json.loads(line) for line in done.stdout.splitlines()], [
        json.loads(server.answer(f"{line}\n".encode())) for line in lines
    ]


def test_another_version_and_what_the_contract_has_not_are_refused_with_32602(by_hand, spec):
    assert "answers `initialize` with the error −32602" in PAGE
    assert "Refuse an unknown argument with −32602" in PAGE
    (hello, call, *_), spoilt = REQUESTS, []
    spoilt.append(hello.replace('"protocol":1', '"protocol":2'))
    spoilt.append(call.replace('"params":{', '"params":{"axis":0,'))
    assert not {hello, call} & {*spoilt}
    for said in answers(by_hand, spec, *spoilt):
        assert [reply["error"]["code"] for reply in said] == [messages.INVALID_PARAMS] * 2
        version, argument = (reply["error"]["message"] for reply in said)
        assert "protocol" in version
        assert "1" in version
        assert "axis" in argument


def test_what_initialize_has_not_and_another_key_of_a_message_are_refused(spec):
    server = Server(find_adapter("textbook", spec), spec)
    hello = REQUESTS[0]
    said = json.loads(server.answer(hello.replace('"protocol":1', '"protocol":1,"device":"cpu"').encode()))
    assert said["error"]["code"] == messages.INVALID_PARAMS
    assert said["error"]["message"].startswith("params.device is not part of the protocol")
    said = json.loads(server.answer(hello.replace('"id":1', '"id":1,"device":"cpu"').encode()))
    assert said["error"]["code"] == messages.INVALID_REQUEST


def test_a_line_beyond_the_limit_is_answered_and_may_end_it(spec):
    assert "it may answer −32700, without an id, and end" in PAGE
    replies = io.BytesIO()
    requests = io.BytesIO(b"x" * (messages.MAX_MESSAGE + 1) + f"\n{REQUESTS[0]}\n".encode())
    serve(Server(find_adapter("textbook", spec), spec), requests, replies)
    (line,) = replies.getvalue().splitlines()
    said = json.loads(line)
    assert (said["id"], said["error"]["code"]) == (None, messages.PARSE_ERROR)


# The JSON Schema


def test_the_schema_beside_the_page_is_the_one_that_is_printed():
    printed = CliRunner().invoke(main, ["schema", "protocol"])
    assert printed.exit_code == 0
    assert (DOCS / "protocol.schema.json").read_text(encoding="utf-8") == printed.stdout


def test_the_schema_names_every_message_and_forbids_what_is_unknown():
    made = messages.json_schema()
    assert made["$schema"].endswith("2020-12/schema")
    found = {ref["$ref"].rpartition("/")[2] for ref in made["anyOf"]}
    assert found == {
        "InitializeRequest", "ShutdownRequest", "CallRequest",
        "InitializeReply", "CallReply", "ShutdownReply", "ErrorReply",
    }  # fmt: skip
    for name in (*found, "ArrayObject", "Handshake", "Hello", "ErrorObject"):
        assert made["$defs"][name]["additionalProperties"] is False


@pytest.mark.parametrize("data", [None, 1, {"a": 1}])
def test_what_the_schema_says_of_data_is_what_is_read(data):
    forms = messages.json_schema()["$defs"]["ArrayObject"]["properties"]["data"]["oneOf"]
    assert [form["type"] for form in forms] == ["string", "array"]
    with pytest.raises(WireError):
        decode_array({"dtype": "float64", "shape": [1], "data": data}, "it")
