"""Spoilt messages, thousands of them in both directions: an error that says so, never a crash, a hang or a pass."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from goldformer.adapters import find_adapter
from goldformer.adapters.process import client
from goldformer.adapters.process.faults import WireError
from goldformer.adapters.process.messages import ENCODINGS, MAX_DEPTH
from goldformer.adapters.process.server import Server
from goldformer.adapters.process.wire import decode_array
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.judging.verdict import Status
from repository import SUPPORT
from rpc import Answered, spoilt

GOLDFORMER = Path(sys.executable).with_name("goldformer")

MESSAGES = 2000
ALL = 100_000
#: Seconds of computing that one message may take: a thousand times as long as most do, on any machine.
LONGEST = 5.0

#: Components that are not random and whose time and memory do not grow with a number in the message.
PLAIN = (
    "softmax", "scaled_dot_product_attention", "layer_norm", "feed_forward", "cross_entropy", "token_embedding",
    "single_head_attention", "kl_divergence", "label_smoothing",
)  # fmt: skip


pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def messages(request):
    """Return the number of messages that are spoilt in each direction."""
    return ALL if request.config.getoption("--all") else MESSAGES


@pytest.fixture(scope="module")
def servers(spec):
    """The textbook behind the protocol, in both encodings."""
    textbook = find_adapter("textbook", spec)
    return {encoding: Server(textbook, spec, encoding) for encoding in ENCODINGS}


@pytest.fixture
def through(spec, monkeypatch):
    """A bench for an implementation that a function from a line to a line is."""

    def bench(answer, dtype="float64"):
        monkeypatch.setattr(client, "Child", lambda words: Answered(answer))
        return Bench(spec, find_adapter("cmd: none", spec), dtype, "cpu")

    return bench


def small_cases(spec):
    """A few cases of each component, of a few numbers each."""
    for component in PLAIN:
        cases = [case for case in spec.cases_of(component) if not case.only_with and not case.shape_only]
        yield from [c for c in cases if sum(a.size for a in c.input_arrays.values()) < 200][:6]


def truth(line):
    """The first output of a reply, read leniently, by a reader of its own."""
    (array, *_) = json.loads(line)["result"].values()
    return decode_array(array, "it").values


def find_bound(line, case, bench, dtype):
    """Return the distance of a result that is right to a dtype from the first output of a good reply.

    An output has one tolerance for all of its elements. The good reply, which is in float64, may be off by its own.
    """
    golden = case.expects(bench.options(case))[next(iter(json.loads(line)["result"]))]
    return sum(tolerance(each, golden.error_scale, golden.magnitude) for each in (dtype, "float64"))


def test_thousands_of_spoilt_replies_give_no_crash_no_hang_and_no_pass(spec, servers, through, messages):
    rng, last, outcomes = random.Random(1), [], {}
    # Any result departs from advice without being wrong.
    small = [c for c in small_cases(spec) if c.error is None and c.cotangent is None and not spec.is_advice(c)]

    def answer(line):
        good = servers[rng.choice(ENCODINGS)].answer(line)
        if b'"initialize"' in line:
            return good
        last[:] = [good, spoilt(rng, good, [b"null", b"{}"])]
        return last[1]

    bench = through(answer)
    for i in range(messages):
        case = small[i % len(small)]
        start = time.process_time()
        verdict = check_case(case, bench)
        assert time.process_time() - start < LONGEST
        outcomes[verdict.status, verdict.reason] = outcomes.get((verdict.status, verdict.reason), 0) + 1
        if verdict.status is Status.PASSED:
            # What was spoilt does not matter: a space, the last digit of many, an output that is not compared.
            good, bad = truth(last[0]), truth(last[1])
            assert good.shape == bad.shape
            np.testing.assert_allclose(bad, good, rtol=0, atol=find_bound(last[0], case, bench, "float64"))
        if verdict.status is Status.SKIPPED and verdict.reason != "not-implemented":
            # A digit that is lost far behind the point: as accurate as float32.
            assert verdict.reason == "precision"
            good, bad = truth(last[0]), truth(last[1])
            np.testing.assert_allclose(bad, good, rtol=0, atol=find_bound(last[0], case, bench, "float32"))
        assert verdict.message.isprintable()
    assert outcomes[Status.ERRORED, "protocol"] > messages / 2
    assert sum(n for (status, _), n in outcomes.items() if status is Status.PASSED) < messages / 5


def test_thousands_of_spoilt_requests_are_answered_each_with_one_reply(spec, servers, through, messages):
    rng, requests = random.Random(2), [b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocol":1}}\n']

    for server in servers.values():

        def answer(line, server=server):
            requests.append(line)
            return server.answer(line)

        bench = through(answer)
        for case in small_cases(spec):
            check_case(case, bench)
    assert len(requests) > 50
    codes, server = {}, servers["base64"]
    for _ in range(messages):
        line = spoilt(rng, rng.choice(requests), requests)
        start = time.process_time()
        reply = server.answer(line)
        assert time.process_time() - start < LONGEST
        assert (reply.count(b"\n"), reply[-1:]) == (1, b"\n")
        message = json.loads(reply)
        assert ("result" in message) != ("error" in message)
        code = message["error"]["code"] if "error" in message else 0
        codes[code] = codes.get(code, 0) + 1
        assert code == 0 or message["error"]["message"]
    server.ended = False
    assert {0, -32700, -32600, -32601, -32602} <= codes.keys()
    assert codes[0] < messages / 4


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 90_000])
def test_deep_nesting_is_refused_wherever_it_stands(depth, servers):
    deep = b"[" * depth + b"]" * depth
    line = b'{"jsonrpc":"2.0","id":1,"method":"softmax","params":{"scores":{"dtype":"bool","shape":[1],"data":%s}}}'
    error = json.loads(servers["base64"].answer(line % deep))["error"]
    assert (error["code"], error["message"]) == (-32700, "the message is nested more than 16 deep")


def decoded_or_why_not(value):
    try:
        return decode_array(value, "x"), None
    except WireError as error:
        return None, error


def test_decoding_refuses_or_gives_what_was_asked_for(servers):
    """Arrays alone, ten thousand: whatever decodes has the shape and the dtype that it says."""
    rng, decoded = random.Random(3), 0
    arrays = [
        b'{"dtype":"float32","shape":[2,2],"data":[1,2.5,"NaN",-3e4]}',
        b'{"dtype":"bfloat16","shape":[3],"data":"AACAPwDA"}',
        b'{"dtype":"int64","shape":[1,2],"data":[5,-7]}',
        b'{"dtype":"bool","shape":[2,1],"data":"AQA="}',
        b'{"dtype":"float16","shape":[],"data":["-Infinity"]}',
    ]
    for _ in range(10_000):
        try:
            value = json.loads(spoilt(rng, rng.choice(arrays), arrays))
        except (ValueError, RecursionError):
            continue
        array, error = decoded_or_why_not(value)
        if error is not None:
            assert str(error).startswith("x")
            assert str(error).isprintable()
            continue
        decoded += 1
        assert (array.dtype, list(array.shape)) == (value["dtype"], value["shape"])
    assert 100 < decoded < 5000


# Real processes


def test_a_real_server_answers_hundreds_of_spoilt_requests_and_then_a_good_one(servers):
    rng = random.Random(4)
    good = (
        b'{"jsonrpc":"2.0","id":9,"method":"softmax","params":{"scores":{"dtype":"float64","shape":[2],"data":[0,0]}}}'
    )
    requests = [line.replace(b"\n", b"") for line in (spoilt(rng, good, [good]) for _ in range(300))]
    requests = [line for line in requests if line and b"shutdown" not in line]
    done = subprocess.run(
        [GOLDFORMER, "serve", "textbook", "--encoding", "numbers"], input=b"\n".join([*requests, good, b""]),
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    replies = done.stdout.splitlines()
    assert len(replies) == len(requests) + 1
    assert json.loads(replies[-1]) == {
        "jsonrpc": "2.0", "id": 9, "result": {"output": {"dtype": "float64", "shape": [2], "data": [0.5, 0.5]}},
    }  # fmt: skip
    assert done.stderr == b""


def test_a_real_process_that_writes_spoilt_replies_is_errored_and_goes_on(spec, tmp_path):
    rng, file, done = random.Random(5), tmp_path / "line", tmp_path / "done"
    words = [sys.executable, "-S", str(SUPPORT / "misbehaving.py"), "says", str(done), f"@{file}"]
    bench = Bench(spec, find_adapter("cmd: " + shlex.join(words), spec, 10), "float64", "cpu")
    case = spec.cases["sm-one-row-by-hand"]
    good = b'{"jsonrpc":"2.0","id":2,"result":{"output":{"dtype":"float64","shape":[3],"data":[0.1,0.1,0.8]}}}'
    for _ in range(25):
        file.write_bytes(spoilt(rng, good, [good]) + b"\n")
        done.unlink(missing_ok=True)
        assert check_case(case, bench).bad
        assert check_case(case, bench).status is Status.PASSED
    bench.adapter.close()
