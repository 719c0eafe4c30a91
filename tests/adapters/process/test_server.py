"""Behind the protocol an adapter gives what it gives in this process; whatever else is asked gets an error."""

from __future__ import annotations

import io
import json
import re
import shlex
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from goldformer.adapters import Adapter, AdapterError, find_adapter
from goldformer.adapters.process import client, wire
from goldformer.adapters.process.messages import ENCODINGS, MAX_MESSAGE
from goldformer.adapters.process.server import Server, serve
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.repeat import write_command
from goldformer.conformance.judging.verdict import Status
from repository import REPOSITORY
from rpc import Answered

GOLDFORMER = Path(sys.executable).with_name("goldformer")

SOFTMAX = """
import numpy as np
ARRAYS = "numpy"
NAME = "mine"
CONVENTIONS = {"empty_row": "nan"}
def softmax(scores):
    if scores.shape[-1] == 0:
        raise ValueError("scores: no elements")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
HELLO = {"protocol": 1, "suite": "a test"}
SCORES = {"dtype": "float64", "shape": [2], "data": [0, 0]}


@pytest.fixture
def server(spec, adapter_file):
    """The server of an adapter by source or by name, with numbers that can be read."""

    def make(adapter, encoding="numbers"):
        name = adapter_file(adapter, f"mine_{abs(hash(adapter))}.py") if "\n" in adapter else adapter
        return Server(find_adapter(name, spec), spec, encoding)

    return make


def ask(server, method, params, id_=1):
    line = json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode() + b"\n"
    reply = json.loads(server.answer(line))
    assert (reply["jsonrpc"], reply["id"]) == ("2.0", id_)
    return reply.get("result", reply.get("error"))


# What it says of itself


def test_the_handshake_says_what_the_adapter_declares(server):
    assert ask(server(SOFTMAX), "initialize", HELLO) == {
        "protocol": 1, "name": "mine", "version": "", "language": "Python", "components": ["softmax"],
        "gradients": [], "conventions": {"empty_row": "nan"}, "dtypes": ["float64", "float32", "float16"],
        "encoding": "numbers",
    }  # fmt: skip


def test_another_version_is_refused(server):
    error = ask(server(SOFTMAX), "initialize", {"protocol": 2, "suite": "a test"})
    assert error == {"code": -32602, "message": "params.protocol is 2, expected 1"}


def test_what_torch_differentiates_has_gradients(server):
    made = ask(server("reference"), "initialize", HELLO)
    assert "decoder_layer" in made["gradients"]
    assert "causal_mask" not in made["gradients"]


def test_what_is_differentiated_by_hand_has_gradients(server):
    made = ask(server(SOFTMAX + "def softmax_gradient(scores, cotangent): ...\n"), "initialize", HELLO)
    assert (made["components"], made["gradients"]) == (["softmax"], ["softmax"])
    alone = ask(server(SOFTMAX + "def layer_norm_gradient(x, cotangent, *, params): ...\n"), "initialize", HELLO)
    assert (alone["components"], alone["gradients"]) == (["softmax"], [])


def test_an_adapter_that_no_call_could_reach_is_not_served(server):
    with pytest.raises(AdapterError, match="softmax requires x and does not take scores; the suite calls it with sco"):
        server('ARRAYS = "numpy"\ndef softmax(x): ...\n')


# Calls


def test_a_call_gives_the_outputs_by_name(server):
    assert ask(server(SOFTMAX), "softmax", {"scores": SCORES}) == {"output": {**SCORES, "data": [0.5, 0.5]}}
    encoded = ask(server(SOFTMAX, "base64"), "softmax", {"scores": SCORES})
    assert encoded == {"output": {**SCORES, "data": "AAAAAAAA4D8AAAAAAADgPw=="}}


ERRORS = {
    "unknown method": ("sofmax", {}, -32601, "mine has no sofmax"),
    "absent component": ("layer_norm", {}, -32601, "mine has no layer_norm"),
    "absent gradient": ("softmax_gradient", {"scores": SCORES}, -32601, "mine has no softmax_gradient"),
    "missing argument": ("softmax", {}, -32602, "params.scores is missing"),
    "unknown argument": (
        "softmax", {"scores": SCORES, "axis": 1}, -32602, "params.axis is no argument of softmax, which takes scores",
    ),
    "no array": ("softmax", {"scores": [0, 0]}, -32602, "params.scores is [0, 0], expected an object"),
    "bad array": ("softmax", {"scores": {**SCORES, "shape": [3]}}, -32602, "params.scores.data has 2 elements, "),
    "another dtype": (
        "softmax", {"scores": {**SCORES, "dtype": "bfloat16"}},
        -32602, 'params.scores.dtype is "bfloat16", expected one of float64, float32, float16',
    ),
    "refused": (
        "softmax", {"scores": {**SCORES, "shape": [0], "data": []}}, -32602, "ValueError: scores: no elements",
    ),
}  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_has_a_code_and_says_why(error, server):
    method, params, code, message = ERRORS[error]
    got = ask(server(SOFTMAX), method, params)
    assert got["code"] == code
    assert got["message"].startswith(message)
    assert ("data" in got) == (error == "refused")


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("raise NotImplementedError('later')", -32001, "later"),
        ("raise NotImplementedError", -32001, "softmax raises NotImplementedError"),
        ("raise KeyError('w')", -32000, "KeyError: 'w'"),
        ("raise SystemExit(3)", -32000, "SystemExit: 3"),
        ("return [0.5, 0.5]", -32603, "output is a list: return a numpy.ndarray"),
        ("return scores, scores", -32603, "returned 2 values; the contract has output"),
        ("return scores.astype(complex)", -32603, "output is complex128, which the protocol does not have"),
        ("return scores.astype('int32')", -32603, "output is int32, which the protocol does not have"),
    ],
)
def test_what_an_adapter_does_wrong_is_an_error(body, code, message, server):
    error = ask(server(f'ARRAYS = "numpy"\ndef softmax(scores):\n    {body}\n'), "softmax", {"scores": SCORES})
    assert (error["code"], error["message"]) == (code, message)


UNREADABLE = """
ARRAYS = "torch"
import torch
class NoText(Exception):
    def __str__(self): raise LookupError
class Number(Exception):
    def __str__(self): return 7
class Long(Exception):
    def __str__(self): return "A" * 1_000_000
class Liar(torch.Tensor):
    def numpy(self, *_, **__): raise LookupError("no values")
def softmax(scores):
    BODY
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise NoText", "NoText: (its message cannot be shown)"),
        ("raise Number", "Number: (its message cannot be shown)"),
        ("raise Long", "Long: AAAA"),
        ("return scores.to('meta')", "output cannot be read: "),
        ("return torch.nested.nested_tensor([scores, scores])", "output cannot be read: "),
        ("return scores.as_subclass(Liar)", "output cannot be read: LookupError: no values"),
    ],
)
def test_exceptions_and_arrays_that_cannot_be_read_are_errors_too(body, message, server):
    """A process that ended instead would be said to have crashed, and start again for each case."""
    error = ask(server(UNREADABLE.replace("BODY", body)), "softmax", {"scores": SCORES})
    assert error["message"].startswith(message)
    assert len(json.dumps(error)) < 40_000


def test_nothing_returned_is_null(server):
    assert ask(server('ARRAYS = "numpy"\ndef softmax(scores): ...\n'), "softmax", {"scores": SCORES}) is None


def test_what_a_call_leaves_out_is_none_or_not_passed(server):
    source = """
import numpy as np
ARRAYS = "numpy"
def scaled_dot_product_attention(query, key, value, mask, dropout_rate=0.25):
    return {"output": query * dropout_rate, "weights": None if mask is None else query}
def layer_norm(x, params):
    return x * len(params)
"""
    one = {"dtype": "float64", "shape": [1, 1], "data": [2]}
    served = server(source)
    attended = ask(served, "scaled_dot_product_attention", {"query": one, "key": one, "value": one})
    assert attended == {"output": {**one, "data": [0.5]}}
    assert ask(served, "layer_norm", {"x": one, "params": {"gamma": one, "beta": one}})["output"]["data"] == [4]
    assert ask(served, "layer_norm", {"x": one})["output"]["data"] == [0]
    error = ask(served, "scaled_dot_product_attention", {"query": one, "key": one, "value": one, "seed": 1})
    assert error == {"code": -32001, "message": "scaled_dot_product_attention takes no seed, and need not"}


def test_shutdown_ends_it(server):
    made = server(SOFTMAX)
    assert ask(made, "shutdown", {}) is None
    assert made.ended


# Over a socket


def test_it_serves_over_a_socket_until_it_is_asked_to_end(server):
    ours, theirs = socket.socketpair()
    with theirs.makefile("rb") as requests, theirs.makefile("wb") as replies:
        thread = threading.Thread(target=serve, args=(server(SOFTMAX), requests, replies))
        thread.start()
        with ours, ours.makefile("rb") as answers:
            for id_, method in enumerate(("softmax", "what?", "shutdown")):
                params = {"scores": SCORES} if method == "softmax" else {}
                ours.sendall(json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode())
                ours.sendall(b"\n")
                assert json.loads(answers.readline())["id"] == id_
            thread.join(10)
            assert not thread.is_alive()
    theirs.close()


class Endless(io.BytesIO):
    """A request that never ends."""

    asked = 0

    def readline(self, most=-1, /):
        self.asked += most
        return b"1" * most


def test_a_request_without_an_end_is_not_read_to_the_end(server):
    endless, kept = Endless(), io.BytesIO()
    serve(server(SOFTMAX), endless, kept)
    assert endless.asked == MAX_MESSAGE + 1
    (reply,) = kept.getvalue().splitlines()
    assert json.loads(reply)["error"]["message"] == "the message has more than 64 MiB, the most that a message holds"


# The same verdicts as in this process


def sample(spec):
    """A case of each component, one that asks for an error, and one of a gradient."""
    for component in spec.components:
        cases = [case for case in spec.cases_of(component) if not case.full_size]
        kinds = [
            [c for c in cases if c.error is None and c.cotangent is None],
            [c for c in cases if c.error is not None],
            [c for c in cases if c.cotangent is not None],
        ]
        for kind in filter(None, kinds):
            yield min(kind, key=lambda c: sum(a.size for a in (*c.input_arrays.values(), *c.param_arrays.values())))


def as_told(verdict):
    """Drop the parts that depend on where the call was made: the line that repeats it, and where it raised."""
    return verdict.check, verdict.status, verdict.reason, verdict.ratio, verdict.differences


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "dtype"), [("textbook", "float32"), ("reference", "float64"), ("reference", "bfloat16")]
)
def test_a_sample_of_cases_is_judged_as_in_this_process(name, dtype, spec, monkeypatch):
    inside = find_adapter(name, spec)
    served = Server(inside, spec)
    monkeypatch.setattr(client, "Child", lambda words: Answered(served.answer))
    here, there = (Bench(spec, adapter, dtype, "cpu") for adapter in (inside, find_adapter("cmd: none", spec)))
    cases = list(sample(spec))
    assert len(cases) > 60
    for case in cases:
        assert as_told(check_case(case, there)) == as_told(check_case(case, here))


def test_a_process_that_serves_is_judged_as_in_this_process(spec):
    outside = find_adapter(f"cmd: {shlex.quote(str(GOLDFORMER))} serve textbook", spec)
    here, there = (Bench(spec, adapter, "float16", "cpu") for adapter in (find_adapter("textbook", spec), outside))
    verdicts = [check_case(case, there) for case in sample(spec)]
    outside.close()
    assert [as_told(v) for v in verdicts] == [as_told(check_case(case, here)) for case in sample(spec)]
    assert sum(v.status is Status.PASSED for v in verdicts) > 50


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_call_too_large_for_a_message_is_skipped_and_says_so(encoding, spec, server, monkeypatch):
    served = server(SOFTMAX, encoding)
    monkeypatch.setattr(client, "Child", lambda words: Answered(served.answer))
    monkeypatch.setattr(wire, "MAX_MESSAGE", 512)
    bench = Bench(spec, find_adapter("cmd: none", spec), "float64", "cpu", Policy(strict=True))
    verdict = check_case(spec.cases["sm-four-axes"], bench)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert re.fullmatch(r"softmax cannot be called: .* MiB; a message holds 0.000488 MiB at most", verdict.message)
    assert check_case(spec.cases["sm-one-row-by-hand"], bench).status is Status.PASSED


def test_an_adapter_of_a_process_is_an_adapter(spec, monkeypatch, server):
    served = server(SOFTMAX)
    monkeypatch.setattr(client, "Child", lambda words: Answered(served.answer))
    adapter = find_adapter("cmd: java -cp build MyAttention", spec)
    assert isinstance(adapter, Adapter)
    assert (adapter.origin, adapter.name, adapter.arrays) == ("cmd: java -cp build MyAttention", "mine", "process")
    assert adapter.convention("empty_row", "scaled_dot_product_attention", spec) == "nan"
    bench = Bench(spec, adapter, "float32", "cpu")
    assert (
        write_command(bench, bench.policy, "--case", "x")
        == "goldformer check 'cmd: java -cp build MyAttention' --case x --dtype float32"
    )
    assert check_case(spec.cases["sm-several-rows"], bench).status is Status.PASSED
    absent = check_case(spec.cases["sdpa-causal"], bench)
    assert (absent.reason, absent.message) == ("not-implemented", "mine has no scaled_dot_product_attention")
    on_cuda = check_case(spec.cases["sm-several-rows"], Bench(spec, adapter, "float32", "cuda"))
    assert (on_cuda.reason, on_cuda.message) == ("device", "mine works on cpu, not on cuda")


def test_arrays_arrive_as_the_adapter_asks(server):
    source = 'ARRAYS = "numpy"\nimport numpy as np\n'
    source += "def one_hot(ids, *, vocab):\n    return np.eye(vocab, dtype=np.int64)[ids]\n"
    ids = {"dtype": "int64", "shape": [1, 2], "data": [2, 0]}
    made = ask(server(source), "one_hot", {"ids": ids, "vocab": 3})
    assert np.reshape(made["output"]["data"], made["output"]["shape"]).tolist() == [[[0, 0, 1], [1, 0, 0]]]


# States

TOKEN = {"dtype": "float64", "shape": [1, 1, 1, 1], "data": [1]}
TOKENS = {"query": TOKEN, "key": TOKEN, "value": TOKEN}


def add_value(value):
    return TOKENS | {"value": {**TOKEN, "data": [value]}}


def test_a_number_stands_for_a_state_which_may_be_continued_twice(server):
    served = server("textbook")
    first = ask(served, "cached_attention", add_value(2))
    assert (first["output"]["data"], first["state"]) == ([2], 0)
    for value, number in ((4, 1), (6, 2)):
        again = ask(served, "cached_attention", add_value(value) | {"state": 0})
        assert (again["output"]["data"], again["state"]) == ([(2 + value) / 2], number)
    assert ask(served, "cached_attention", add_value(3))["output"]["data"] == [3]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (7, "params.state is 7, which stands for none of the last 64 states"),
        (-1, "params.state is -1, expected an integer of 0 or more, which stands for the state"),
        (True, "params.state is true, expected an integer of 0 or more, which stands for the state"),
        ([0], "params.state is [0], expected an integer of 0 or more, which stands for the state"),
    ],
)
def test_a_state_that_was_not_returned_is_refused(server, state, says):
    error = ask(server("textbook"), "cached_attention", TOKENS | {"state": state})
    assert (error["code"], error["message"].lower()) == (-32602, says)


def test_a_state_is_forgotten_after_64_others(server):
    served = server("textbook")
    for _ in range(64):
        ask(served, "cached_attention", TOKENS)
    assert ask(served, "cached_attention", TOKENS | {"state": 0})["state"] == 64
    assert ask(served, "cached_attention", TOKENS | {"state": 0})["code"] == -32602


def test_a_call_of_a_session_has_no_script_and_no_gradient(server):
    served = server("reference")
    says = ask(served, "cached_attention", TOKENS | {"calls": 1})["message"]
    known = "key, mask, query, state, value"
    assert says == f"params.calls is no argument of cached_attention, which takes {known}"
    assert "cached_attention" not in ask(served, "initialize", HELLO)["gradients"]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("", "returned no state for the calls that follow: return (output, state), in call 1 of 4"),
        (',"state":-1', "result.state is -1, expected an integer of 0 or more, which stands for the state"),
        (',"state":"0"', 'result.state is "0", expected an integer of 0 or more, which stands for the state'),
    ],
)
def test_a_process_returns_a_number_for_the_state(spec, monkeypatch, server, state, says):
    served = server("textbook")

    def answer(line):
        reply = served.answer(line)
        return re.sub(rb',"state":\d+', state.encode(), reply)

    monkeypatch.setattr(client, "Child", lambda words: Answered(answer))
    adapter = find_adapter("cmd: a program", spec)
    verdict = check_case(spec.cases["cache-prompt-chunk-steps"], Bench(spec, adapter, "float64", "cpu"))
    assert verdict.status in (Status.FAILED, Status.ERRORED)
    assert says in verdict.message


def test_the_page_shows_what_the_textbook_answers(server):
    page = (REPOSITORY / "docs/protocol.md").read_text(encoding="utf-8")
    shown, served = re.findall(r"^suite:   (.*)\nprocess: (.*)$", page, re.MULTILINE), server("textbook")
    assert len(shown) == 2
    for asked, answered in shown:
        assert json.loads(served.answer(asked.encode() + b"\n")) == json.loads(answered)


@pytest.mark.parametrize("case", ["cache-prompt-chunk-steps", "cache-continuations-take-turns", "cache-left-padding"])
def test_a_session_passes_behind_the_protocol(spec, monkeypatch, server, case):
    served = server("reference")
    monkeypatch.setattr(client, "Child", lambda words: Answered(served.answer))
    adapter = find_adapter("cmd: a program", spec)
    assert check_case(spec.cases[case], Bench(spec, adapter, "float64", "cpu")).status is Status.PASSED
