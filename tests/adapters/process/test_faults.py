"""A process that goes wrong: a verdict that says how, a new process for the next case, and none left over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.adapters import AdapterError, find_adapter
from goldformer.adapters.process import child
from goldformer.adapters.process.client import Client
from goldformer.adapters.process.faults import CallFault
from goldformer.conformance.cli import main
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.reports.text import explain_verdict
from goldformer.conformance.runner import judge_implementation
from goldformer.conformance.selection import Selection
from repository import SUPPORT

MISBEHAVING = SUPPORT / "misbehaving.py"
TIMEOUT = 0.5
#: Answers the first request with a file, and ends at the next one: who waits for more is not kept waiting.
ANSWER_ONCE = 'cat "$1"; read first; read next'


def children():
    """The processes that this one started and that are running or not reaped."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def command():
    """The name of an adapter that is a process of Python."""
    return lambda *words: "cmd: " + shlex.join([sys.executable, "-S", *map(str, words)])


@pytest.fixture
def misbehaving(spec, tmp_path, command):
    """A bench for a process that misbehaves at its first call, and in that alone."""
    before, benches = children(), []

    def make(fault, timeout=TIMEOUT, *more):
        adapter = find_adapter(command(MISBEHAVING, fault, tmp_path / "done", *more), spec, timeout)
        benches.append(Bench(spec, adapter, "float64", "cpu", Policy(require_refusals=True)))
        return benches[-1]

    yield make
    for bench in benches:
        bench.adapter.close()
    assert children() == before


FAULTS = {
    "exit_3": (
        "crashed",
        "the process ended with exit status 3 when it was asked for softmax. "
        'Last on standard error: "who took the weights?"',
    ),
    "segfault": ("crashed", "the process ended with signal SIGSEGV when it was asked for softmax"),
    "garbage": (
        "protocol",
        "the process wrote a line that does not answer softmax: the message is not JSON: 'computing softmax ...'. "
        "Standard output is only for messages: log to standard error",
    ),
    "hang": (
        "timeout",
        "the process gave no answer within 0.5 s when it was asked for softmax. Is standard output flushed after "
        "every line? If it is, give it more time with --timeout (of pytest: --call-timeout), or find out where it "
        "waits",
    ),
    "half_a_message_and_hang": ("timeout", "bytes but no line break within 0.5 s: half a message"),
    "half_a_message_and_end": ("crashed", "the process ended with exit status 0 in the middle of a message, after "),
    "wrong_id": ("protocol", "id is 10000, expected 2, that of the request"),
    "huge_reply": ("protocol", "the process sent more than 64 MiB without a line break when it was asked for softmax"),
    "closed_output": ("protocol", "the process closed its standard output and is still running"),
    "late": ("timeout", "gave no answer within 0.5 s"),
    "no_reply_to_anything": ("protocol", "the message is [], expected an object"),
    "both": ("protocol", "the reply has both a result and an error; it has one of them"),
    "bad_array": (
        "protocol",
        "the process answered softmax without a valid result: result.output.data has 2 elements, the shape [3] has 3",
    ),
    "nan_literal": ("protocol", 'NaN is no number in JSON: write "NaN", a string'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_errored_verdict_and_the_next_case_passes(fault, misbehaving, spec):
    # So much is read that half a second is not enough on a busy machine.
    bench = misbehaving(fault, 20 if fault == "huge_reply" else TIMEOUT)
    case = spec.cases["sm-one-row-by-hand"]
    reason, says = FAULTS[fault]
    verdict = check_case(case, bench)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, reason)
    assert says in verdict.message
    assert check_case(case, bench).status is Status.PASSED


def test_what_goes_on_being_written_is_late_all_the_same(monkeypatch):
    """One byte is there whenever one looks."""
    (there, given), (kept, back), (nothing, silent) = os.pipe(), os.pipe(), os.pipe()
    os.write(back, b" ")
    monkeypatch.setattr(child, "_read", lambda _: b" ")
    began = time.monotonic()
    with pytest.raises(child.ChildFault, match=r"but no line break within 0\.2 s: half a message"):
        Endless(given, kept, nothing).exchange(b"", 0.2)
    assert time.monotonic() - began < 2
    for descriptor in (there, given, kept, back, nothing, silent):
        os.close(descriptor)


class Endless(child.Pipes):
    """Pipes to nobody."""

    def _has_ended(self):
        return False

    def _explain_closed_pipe(self, size, which="output"):
        raise AssertionError(which)


@pytest.mark.parametrize("fault", ["closed_input", "two_replies"])
def test_a_fault_after_a_good_answer_is_that_of_the_next_call(fault, misbehaving, spec):
    bench, case = misbehaving(fault), spec.cases["sm-one-row-by-hand"]
    verdicts = [check_case(case, bench) for _ in range(3)]
    assert [v.status for v in verdicts] == [Status.PASSED, Status.ERRORED, Status.PASSED]
    says = {
        "closed_input": ("protocol", "closed its standard input and is still running"),
        "two_replies": ("protocol", "id is 2, expected 3, that of the request"),
    }[fault]
    assert verdicts[1].reason == says[0]
    assert says[1] in verdicts[1].message


@pytest.mark.parametrize("fault", ["exit_3", "garbage", "hang", "wrong_id"])
def test_a_fault_is_no_refusal(fault, misbehaving, spec):
    """A case that asks for an error is not passed by a process that breaks down."""
    bench, case = misbehaving(fault), spec.cases["sm-no-elements"]
    Path(bench.adapter.origin.split()[-1]).touch()
    assert check_case(case, bench).status is Status.PASSED
    Path(bench.adapter.origin.split()[-1]).unlink()
    # The working call comes first.
    assert check_case(case, bench).reason == FAULTS[fault][0]


SHAPES = """
import json, math, sys

for line in sys.stdin:
    request = json.loads(line)
    result = {"protocol": 1, "name": "shapes", "version": "1", "components": ["softmax"], "encoding": "numbers"}
    if request["method"] == "softmax":
        scores = request["params"]["scores"]
        width = scores["shape"][-1]
        if scores["data"]:
            rows = [scores["data"][i : i + width] for i in range(0, len(scores["data"]), width)]
            powers = [[math.exp(x - max(row)) for x in row] for row in rows]
            result = {"output": {**scores, "data": [x / sum(row) for row in powers for x in row]}}
        else:
            result = {"output": {"dtype": "float64", "shape": [0] + [2**24] * 7, "data": []}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


# It passed: NumPy's ValueError in the suite was taken for a refusal by the implementation.
def test_an_array_that_cannot_be_is_no_refusal(spec, tmp_path, command):
    path = tmp_path / "shapes.py"
    path.write_text(SHAPES, encoding="utf-8")
    with contextlib.closing(find_adapter(command(path), spec, 20)) as adapter:
        bench = Bench(spec, adapter, "float64", "cpu", Policy(require_refusals=True))
        assert check_case(spec.cases["sm-one-row-by-hand"], bench).status is Status.PASSED
        verdict = check_case(spec.cases["sm-no-elements"], bench)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "protocol")
    assert verdict.message.startswith(
        "the process answered softmax without a valid result: result.output.shape is [0, 16777216, 16777216, ...]: "
    )
    assert "wire.py" not in verdict.message


def test_what_was_said_on_standard_error_is_shown(misbehaving, spec):
    verdict = check_case(spec.cases["sm-one-row-by-hand"], misbehaving("exit_3"))
    assert verdict.detail == "reading the weights\nwho took the weights?"
    assert "\n  Stderr      reading the weights\n              who took the weights?\n" in explain_verdict(
        Explained(verdict), spec
    )


def test_what_it_says_does_not_steer_the_terminal(misbehaving, spec):
    verdict = check_case(spec.cases["sm-one-row-by-hand"], misbehaving("colours"))
    assert verdict.detail == r"\x1b[31mred\x1b[0m"
    assert "\x1b" not in verdict.message


def test_a_flood_on_standard_error_neither_blocks_nor_fills_the_memory(misbehaving, spec):
    bench = misbehaving("talkative", 20)
    assert check_case(spec.cases["sm-one-row-by-hand"], bench).status is Status.PASSED


def test_what_a_process_started_is_ended_with_it(misbehaving, spec):
    bench, case = misbehaving("leaves_a_child"), spec.cases["sm-one-row-by-hand"]
    verdict = check_case(case, bench)
    # It holds the pipes open, so that the end of the process is no end of its output.
    assert verdict.message.startswith("the process ended with exit status 0 when it was asked for softmax")
    left = verdict.detail.removeprefix("left ")
    deadline = time.monotonic() + 5
    while running(left) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running(left)
    assert check_case(case, bench).status is Status.PASSED


def test_a_daemon_that_leaves_the_group_is_left_alone(misbehaving, spec):
    verdict = check_case(spec.cases["sm-one-row-by-hand"], misbehaving("leaves_a_daemon"))
    left = verdict.detail.removeprefix("left ")
    assert running(left)
    os.kill(int(left), signal.SIGKILL)


def test_a_property_asks_once_for_what_is_not_answered(misbehaving, spec, tmp_path):
    """Ten drawn inputs and a search for a smaller one would wait a hundred times."""
    start = time.monotonic()
    verdict = check_property(spec.properties["sm-shift"], "softmax", misbehaving("hang"))
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "timeout")
    assert time.monotonic() - start < 4 * TIMEOUT + 2


# Processes that do not answer any more


@pytest.mark.parametrize(
    "fault", ["hang", "half_a_message_and_hang", "drip", "carriage_return", "closed_input_and_hang"]
)
def test_after_three_timeouts_in_a_row_a_component_is_not_waited_for(fault, spec, command):
    began = time.monotonic()
    with contextlib.closing(find_adapter(command(MISBEHAVING, fault, "always"), spec, 0.2)) as adapter:
        record = judge_implementation(Bench(spec, adapter, "float64", "cpu"), Selection(("float64",), ("softmax",)))
    assert time.monotonic() - began < 10, "the other calls alone take 3 seconds, and a start each"
    bad = record.bad
    assert {(v.status, v.reason) for v in bad} == {(Status.ERRORED, "timeout")}
    assert [v.was_asked for v in bad] == [True] * 3 + [False] * (len(bad) - 3)
    assert {v.message for v in bad[3:]} == {"not run: 3 calls of softmax in a row timed out"}
    assert record.results["softmax"].state == "fails first"
    (remark,) = [remark for remark in record.brief if remark.label == "No answer"]
    others = len(bad) - 3
    assert others > 10
    assert remark.text == (f"{others} checks were not run: {others} of softmax: 3 calls of softmax in a row timed out")


def test_check_of_a_process_that_hangs_fails_and_says_what_was_not_run(command):
    result = CliRunner().invoke(
        main, ["check", command(MISBEHAVING, "hang", "always"), "--component", "softmax", "--timeout", "0.2"]
    )
    assert result.exit_code == 1
    assert re.search(r"^softmax .* fails first ", result.stdout, re.MULTILINE)
    assert re.search(
        r"^No answer: (\d+) checks were not run: \1 of softmax: 3 calls of softmax in a row timed out$",
        result.stdout, re.MULTILINE,
    )  # fmt: skip


class Silent:
    """A process that answers the handshake, and then `answers` decides: None for a timeout."""

    owner = os.getpid()

    def __init__(self, answer):
        self.answer = answer

    def exchange(self, message, seconds):
        request = json.loads(message)
        result = {"protocol": 1, "name": "silent", "components": [], "encoding": "numbers"}
        if request["method"] != "initialize":
            result = self.answer(request["method"])
            if result is None:
                raise child.ChildFault("timeout", "gave no answer")
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()

    def measure_cpu(self) -> float:
        return 0.0

    def stop(self):
        """Nothing runs."""

    def end(self, grace=0.0):
        """Nothing runs."""

    def stderr_tail(self):
        return ""


def call_each(methods, answer, timeout):
    """The messages of the faults of calls of one process; "" for a call that is answered."""
    client, messages = Client(lambda: Silent(answer), timeout), []
    for method in methods:
        try:
            client.call(method, {})
            messages.append("")
        except CallFault as fault:
            messages.append(str(fault).partition(". Is standard")[0])
    return messages


LATE = "the process gave no answer when it was asked for {}"


def test_a_process_that_answers_no_second_component_is_given_up():
    """28 components of three timeouts of a minute each are an hour and a half."""
    assert call_each(["a", "a", "a", "a", "b", "b", "c", "d"], lambda method: None, 60.0) == [
        *[LATE.format("a")] * 3,
        "not run: 3 calls of a in a row timed out",
        LATE.format("b"),
        *["not run: 4 calls of the process in a row timed out"] * 3,
    ]


def test_with_a_short_timeout_every_component_is_asked():
    names = [f"c{number}" for number in range(25)]
    messages = call_each([name for name in names for _ in range(4)], lambda method: None, 3.0)
    given_up = [f"not run: 3 calls of {name} in a row timed out" for name in names]
    assert messages[3::4] == given_up
    last = call_each([name for name in names for _ in range(3)], lambda method: None, 4.0)
    assert last[60:] == ["not run: 60 calls of the process in a row timed out"] * 15


def test_an_answer_in_between_is_waited_for_again():
    answers = iter([None, None, {}, None, None, {}, None, None, None])
    messages = call_each(["a"] * 11, lambda method: next(answers), 60.0)
    late = LATE.format("a")
    assert messages[:9] == [late, late, "", late, late, "", late, late, late]
    assert messages[9:] == ["not run: 3 calls of a in a row timed out"] * 2


def test_a_component_that_answers_is_judged_after_one_that_does_not():
    messages = call_each(["a"] * 4 + ["b"] * 4, lambda method: None if method == "a" else {}, 60.0)
    assert messages == [*[LATE.format("a")] * 3, "not run: 3 calls of a in a row timed out", "", "", "", ""]


# Errors that the implementation answers with


ANSWERS = {
    "no method": ('"error":{"code":-32601,"message":"no such method"}', "skipped", "not-implemented", "no such method"),
    "no variant": ('"error":{"code":-32001,"message":"only 2 axes"}', "skipped", "not-implemented", "only 2 axes"),
    "no words": ('"error":{"code":-32001,"message":""}', "skipped", "not-implemented", "softmax is not implemented"),
    "refused": (
        '"error":{"code":-32602,"message":"scores: bad"}', "errored", "raised", "raised scores: bad (code -32602)",
    ),
    "raised": ('"error":{"code":-1,"message":"Index 3"}', "errored", "raised", "raised Index 3 (code -1)"),
    "unread": (
        '"error":{"code":-32700,"message":"unexpected token"}',
        "errored", "protocol", "the process could not read the request softmax: unexpected token",
    ),
    "null": ('"result":null', "failed", "nothing-returned", "returned None: return output"),
    "empty": (
        '"result":{}', "failed", "not-an-array", "returned a mapping of nothing; the contract has output",
    ),
    "another output": (
        '"result":{"weights":{"dtype":"bool","shape":[],"data":[true]}}',
        "failed", "not-an-array", "returned a mapping of weights; the contract has output",
    ),
    "another dtype": (
        '"result":{"output":{"dtype":"float16","shape":[3],"data":[0,0,1]}}',
        "failed", "wrong-dtype", "output is float16, must be float64, as the inputs are: an intermediate value "
        "is made in or cast to float16, keep it in float64, or declare DTYPES without float64",
    ),
    "another shape": (
        '"result":{"output":{"dtype":"float64","shape":[1,3],"data":[0,0,1]}}',
        "failed", "wrong-shape", "output has shape (1, 3), must be (..., n) = (3,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_what_it_says(answer, misbehaving, spec):
    says, status, reason, message = ANSWERS[answer]
    bench, case = misbehaving("says", 10, '{"jsonrpc":"2.0","id":ID,' + says + "}"), spec.cases["sm-one-row-by-hand"]
    process = children()
    verdict = check_case(case, bench)
    assert (verdict.status.value, verdict.reason, verdict.message) == (status, reason, message)
    assert check_case(case, bench).status is Status.PASSED
    assert children() == process, "it answered in its turn, so that it can be asked again"


@pytest.mark.parametrize(
    "result",
    [
        '{"output":{"dtype":"float64","shape":[0,16777216,16777216,16777216,16777216,16777216,16777216],"data":[]}}',
        '{"output":{"dtype":"float64","shape":[0,-1],"data":[]}}',
        '{"output":{"dtype":"float64","shape":[0],"data":[]},"b":{},"c":{}}',
        "[]",
    ],
    ids=["shape", "negative", "names", "list"],
)
def test_a_malformed_answer_is_no_refusal(result, misbehaving, spec):
    """An error of our own decoder counted as one of the implementation, which passed a case that asks for an error."""
    bench = misbehaving("says", 10, '{"jsonrpc":"2.0","id":ID,"result":' + result + "}")
    verdict = check_case(spec.cases["sm-no-elements"], bench)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "protocol")
    assert "the process answered softmax without a valid result: result" in verdict.message


def test_an_error_without_an_id_is_an_answer_to_what_could_not_be_read(misbehaving, spec):
    bench = misbehaving("says", 10, '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no id"}}')
    verdict = check_case(spec.cases["sm-one-row-by-hand"], bench)
    assert verdict.message == "the process could not read the request softmax: no id"


def test_a_traceback_is_kept(misbehaving, spec):
    error = '{"code":-5,"message":"oh","data":"at line 7\\nof MyAttention"}'
    bench = misbehaving("says", 10, '{"jsonrpc":"2.0","id":ID,"error":' + error + "}")
    assert check_case(spec.cases["sm-one-row-by-hand"], bench).detail == "at line 7\nof MyAttention"


# Processes that cannot be used at all


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cmd:", "cmd:: the command is empty"),
        ("cmd: sh -c 'oh", "cmd: sh -c 'oh: No closing quotation"),
        ("cmd: no-such-program-here", "cannot be started: no-such-program-here: No such file or directory"),
        ("cmd: sh -c 'echo class not found >&2; exit 1'", "the process ended with exit status 1 when it was asked for "
         "initialize. Last on standard error: \"class not found\"\n  Standard error ends with:\n    class not found"),
        ("cmd: sh -c 'echo hello; sleep 9'", "wrote a line that does not answer initialize: the message is not JSON"),
        ("cmd: sleep 9", "the process gave no answer within 0.5 s when it was asked for initialize"),
        ("cmd: sh -c 'echo [0.5]; sleep 9'", "the message is [0.5], expected an object. Standard output is only for "),
        ("cmd: cat", "the reply has neither a result nor an error; it has ['jsonrpc', 'id', 'method', ...]"),
    ],
)  # fmt: skip
def test_what_does_not_shake_hands_is_unusable(name, says, spec):
    before = children()
    with pytest.raises(AdapterError) as error:
        find_adapter(name, spec, TIMEOUT)
    assert says in str(error.value)
    assert children() == before


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (
            "thread 'main' panicked at src/main.rs:3:5:\nindex out of bounds\n"
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
            "index out of bounds",
        ),
        (
            'Exception in thread "main" java.lang.IllegalStateException: no weights\n\tat Main.main(Main.java:5)\n',
            'Exception in thread "main" java.lang.IllegalStateException: no weights',
        ),
        (
            "/a/main.js:3\n  throw new Error('no weights')\n  ^\n\nError: no weights\n    at main (/a/main.js:3:9)\n"
            "\nNode.js v20.11.0\n",
            "Error: no weights",
        ),
        (
            "Traceback (most recent call last):\n  File 'a.py', line 1\nValueError: no weights\n",
            "ValueError: no weights",
        ),
        ("  all of it is indented\n  and so is this\n", "and so is this"),
    ],
    ids=["rust", "java", "node", "python", "indented"],
)
def test_of_what_was_said_last_the_line_is_shown_that_says_what_happened(told, says, spec, tmp_path):
    file = tmp_path / "told"
    file.write_text(told, encoding="utf-8")
    with pytest.raises(AdapterError) as error:
        find_adapter(f"cmd: sh -c 'cat {file} >&2; exit 1'", spec, 10)
    assert f'exit status 1 when it was asked for initialize. Last on standard error: "{says}"' in str(error.value)


def test_a_refusal_to_shake_hands_is_told_as_one(spec, tmp_path):
    file = tmp_path / "answer"
    file.write_text('{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no GPU here"}}\n', encoding="utf-8")
    with pytest.raises(AdapterError, match=r": it refused initialize: no GPU here \(code -32603\)$"):
        find_adapter(f"cmd: sh -c 'cat {file}; cat >/dev/null'", spec, 10)


def test_an_answer_to_another_request_is_no_log_line(misbehaving, spec):
    verdict = check_case(spec.cases["sm-one-row-by-hand"], misbehaving("wrong_id"))
    assert verdict.message.endswith("id is 10000, expected 2, that of the request")


@pytest.mark.parametrize(
    ("handshake", "says"),
    [
        ("{}", "the process answered initialize without a valid handshake: result.protocol is missing"),
        ('{"protocol":2,"name":"a","components":[]}', "result.protocol is 2, expected 1"),
        ('{"protocol":true,"name":"a","components":[]}', "result.protocol is true, expected an integer"),
        ('{"protocol":1.0,"name":"a","components":[]}', "result.protocol is 1.0, expected an integer"),
        ('{"protocol":1,"name":7,"components":[]}', "result.name is 7, expected a string"),
        ('{"protocol":1,"name":"a","components":"softmax"}', 'result.components is "softmax", expected a list'),
        (
            '{"protocol":1,"name":"a","components":["sofmax"]}',
            "initialize: components has 'sofmax': did you mean softmax?",
        ),
        (
            '{"protocol":1,"name":"a","components":[],"gradients":["zzz"]}',
            "initialize: gradients has 'zzz'; components are alibi_bias, ",
        ),
        (
            '{"protocol":1,"name":"a","components":["softmax"],"gradients":["softmax","layer_norm"]}',
            "initialize: gradients has layer_norm, which is missing in components: list it in both, or in neither",
        ),
        (
            '{"protocol":1,"name":"a","components":["softmax","layer_norm","softmax"]}',
            "initialize: components lists softmax 2 times: list it once",
        ),
        (
            f'{{"protocol":1,"name":"a","components":{json.dumps(["softmax"] * 200_000)}}}',
            "initialize: components lists softmax 200000 times: list it once",
        ),
        (
            '{"protocol":1,"name":"a","components":["softmax"],"gradients":["softmax","softmax"]}',
            "initialize: gradients lists softmax 2 times: list it once",
        ),
        (
            '{"protocol":1,"name":"a","components":["softmax"],"dtypes":["float32","float32"]}',
            "initialize: dtypes lists float32 2 times: list it once",
        ),
        (
            '{"protocol":1,"name":"a","components":[],"convention":{}}',
            "result.convention is not part of the protocol; result has protocol, name, version, ",
        ),
        (
            '{"protocol":1,"name":"a","components":[],"conventions":{"empty_row":"none"}}',
            "CONVENTIONS has 'empty_row': 'none'; its options are uniform, zeros, nan",
        ),
        (
            '{"protocol":1,"name":"a","components":[],"family":"llama"}',
            "FAMILY is 'llama'; families are gpt-2, bert, ",
        ),
        (
            '{"protocol":1,"name":"a","components":[],"dtypes":["float8"]}',
            'result.dtypes[0] is "float8", expected "float64", ',
        ),
        ('{"protocol":1,"name":"a","components":[],"dtypes":[]}', "result.dtypes is [], expected at least 1 elements"),
        ('{"protocol":1,"name":"a","components":[],"encoding":"hex"}', 'result.encoding is "hex", expected "numbers" '),
    ],
)
def test_a_handshake_that_does_not_fit_is_refused(handshake, says, spec, tmp_path):
    before, file = children(), tmp_path / "answer"
    file.write_text(f'{{"jsonrpc":"2.0","id":1,"result":{handshake}}}\n', encoding="utf-8")
    with pytest.raises(AdapterError) as error:
        find_adapter(f"cmd: sh -c '{ANSWER_ONCE}' sh {file}", spec, 10)
    assert says in str(error.value)
    assert children() == before


@pytest.mark.parametrize("family", [None, "llama-3"])
def test_a_handshake_may_say_little(family, spec, tmp_path):
    file, more = tmp_path / "answer", f',"family":"{family}","conventions":{{"empty_row":"nan"}}' if family else ""
    result = f'{{"protocol":1,"name":"mine","components":["softmax"]{more}}}'
    file.write_text(f'{{"jsonrpc":"2.0","id":1,"result":{result}}}\r\n', encoding="utf-8")
    adapter = find_adapter(f"cmd: sh -c '{ANSWER_ONCE}' sh {file}", spec, 10)
    adapter.close()
    assert (adapter.name, adapter.version, adapter.dtypes) == ("mine", "", ("float64", "float32"))
    assert adapter.conventions == ({**spec.families[family].own, "empty_row": "nan"} if family else {})
    assert (list(adapter.functions), dict(adapter.gradients), adapter.devices) == (["softmax"], {}, ("cpu",))


def test_what_never_starts_again_is_given_up(spec, tmp_path, command):
    """A first start that works and later ones that hang do not cost a timeout for each of a thousand cases."""
    file = tmp_path / "done"
    script = f"import pathlib, time; f = pathlib.Path({str(file)!r}); time.sleep(600) if f.exists() else None; "
    script += f"exec(open({str(MISBEHAVING)!r}).read())"
    adapter = find_adapter(command("-c", script, "exit_3", file), spec, TIMEOUT)
    bench, case = Bench(spec, adapter, "float64", "cpu"), spec.cases["sm-one-row-by-hand"]
    verdicts = [check_case(case, bench) for _ in range(5)]
    start = time.monotonic()
    verdicts += [check_case(case, bench) for _ in range(20)]
    assert time.monotonic() - start < TIMEOUT
    assert [v.reason for v in verdicts] == ["crashed", *["timeout"] * 24]
    assert verdicts[-1].message.startswith("was not started again after 3 failures: the process gave no answer within")


def test_an_adapter_that_is_forgotten_leaves_no_process(spec, tmp_path, command):
    before = children()
    (tmp_path / "done").touch()
    adapter = find_adapter(command(MISBEHAVING, "hang", tmp_path / "done"), spec, 10)
    assert len(children() - before) == 1
    del adapter
    assert children() == before


#: Lists softmax, with a name and a version of its own choice, and implements it for no call.
NAMED = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    reply = {"error": {"code": -32001, "message": "no\\n::error::no"}}
    if request["method"] == "initialize":
        reply = {"result": {"protocol": 1, "name": NAME, "version": "1\\n::error::1", "components": ["softmax"]}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
"""


def test_a_convention_of_any_length_is_quoted_in_a_short_message(tmp_path, command):
    program = tmp_path / "named.py"
    source = NAMED.replace('"version"', '"conventions": {"k" * 1_000_000: "nan"}, "version"')
    program.write_text(f"NAME = 'n'\n{source}", encoding="utf-8")
    result = CliRunner().invoke(main, ["check", command(program)])
    assert result.exit_code == 2
    assert "CONVENTIONS has 'kkk" in result.stderr
    assert len(result.stderr) < 1000


def test_names_and_reasons_of_a_process_are_one_line_of_bounded_length(tmp_path, command):
    """A further line in the log of a build server could be a command to the server."""
    program = tmp_path / "named.py"
    program.write_text(f"NAME = 'n\\n::error::n\\x1b' + 'x' * 1_000_000\n{NAMED}", encoding="utf-8")
    result = CliRunner().invoke(main, ["check", command(program), "--component", "softmax"])
    assert result.exit_code == 2
    assert "nothing was checked" in result.stderr
    assert not [line for line in result.output.splitlines() if line.lstrip().startswith("::")]
    assert len(result.output) < 5000
