"""Faults of a submission's process: their names, and the messages for students."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from goldformer.adapters.process.faults import CallFault
from goldformer.conformance.grading.sandbox import Limits, Sandbox, SandboxClient
from goldformer.conformance.grading.sandbox._client import MOST_WRITTEN
from sandboxes import DOING, LIMITS, SOFTMAX, clients, fault_of, make_folder, softmax_of

LATE = "the process gave no answer within 2 s of processor time when it was asked for softmax"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS, "numpy") as made:
        yield made


@pytest.fixture
def client(sandbox, tmp_path):
    """The client of a submission with a source."""
    with clients(sandbox, tmp_path) as make:
        yield make


@pytest.mark.parametrize(
    ("doing", "reason", "words"),
    [
        ("os._exit(7)", "crashed", "the process ended with exit status 7 when it was asked for softmax"),
        ("ctypes.string_at(0)", "killed", "the process was ended by signal SIGSEGV when it was asked for softmax"),
        ("time.sleep(60)", "timeout", "the process hardly computed for 4 s: it sleeps or waits when it was asked .*"),
        # It is silent for longer than any wait, but computes whenever it can.
        ("for _ in range(7): time.sleep(0.9); sum(range(4 * 10**6))\n    return scores * 'x'", "raised", ".*"),
        # The next one uses its time too, in three processes.
        pytest.param("while True: pass", "timeout", LATE, marks=pytest.mark.sample(0)),
        ("[os.fork() for _ in 'ab']\n    while True: pass", "timeout", LATE),
        ("time.sleep(3); return scores * 'x'", "raised", ".*"),
        ("return np.ones(1 << 30)", "memory", "used more than 512 MiB of memory: .*MemoryError: .*"),
        ("bytearray(1 << 30)", "memory", "used more than 512 MiB of memory: MemoryError: "),
        ("print('x' * (3 << 20)); return scores", "output-limit", "the process printed more than 1 MiB .*softmax"),
        ("open('big', 'wb').write(bytes(3 << 20))", "output-limit", "wrote more than 2 MiB to files: OSError.*"),
        ("sys.exit(0)", "raised", "SystemExit: 0"),
        ("raise ValueError('scores: bad')", "raised", "ValueError: scores: bad"),
        ("os.closerange(3, 99); time.sleep(9)", "protocol", "the process closed its connection and goes on running.*"),
        ("os.write(3, b'nonsense\\n'); time.sleep(9)", "protocol", "the process wrote something else than .*"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_told_apart_and_the_next_call_starts_anew(client, doing, reason, words):
    one = client(f"{DOING.format(doing)}\ndef log_softmax(x): return x\n")
    fault = fault_of(one)
    assert fault.reason == reason
    assert re.fullmatch(words, str(fault), re.DOTALL)
    assert one.start().components == ["softmax"]


def test_too_much_processor_time_is_a_timeout(tmp_path):
    limits = Limits(call=20.0, cpu=1, memory=512)
    with Sandbox(limits, "numpy") as sandbox:
        one = sandbox.client(make_folder(tmp_path / "code", DOING.format("while True: pass")))
        fault = fault_of(one)
        one.close()
    assert (fault.reason, str(fault)) == (
        "timeout", "the process used more than 1 s of processor time when it was asked for softmax",
    )  # fmt: skip


def test_memory_of_all_its_processes_counts_together(sandbox, client):
    if "cgroup" not in sandbox.isolation.features:
        pytest.skip(sandbox.isolation.missing["cgroup"])
    hold = """
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(b'x') * (200 << 20)
            time.sleep(60)
    held = bytearray(b'x') * (200 << 20)
    while True: pass"""
    fault = fault_of(client(DOING.format(hold)))
    # The kernel ends one of the five: this one, or another and then this one goes on.
    assert fault.reason in ("memory", "timeout")


def test_a_submission_that_cannot_be_imported_says_where(client):
    cases = {
        "def softmax(scores:\n    pass\n": r"submission.py:1: SyntaxError: '\(' was never closed",
        "import nothing_of_this_name\n": "submission.py:1: needs nothing_of_this_name, which the grading",
        "import helper.part\n": "No module named 'helper.part'; 'helper' is not a package",
        "\n\nimport sys\nsys.exit(3)\n": "submission.py:4: SystemExit: 3",
        "def f():\n    return 1 / 0\nf()\n": "submission.py:2: ZeroDivisionError: division by zero",
        "import helper\n": "helper.py:1: NameError: name 'undefined' is not defined",
        "x = 1\n": "module 'submission' has no attribute 'softmax'",
        # Python quotes the line, which is longer than a handshake may be.
        f"x = [{'1, ' * 50_000}\n": r"submission.py:1: SyntaxError: '\[' was never closed",
        "raise ValueError('x' * 100_000)\n": "submission.py:1: ValueError: xxx",
        # Python says MemoryError of the first two and RecursionError of the third.
        f"x = {'-' * 50_000}1\n": r"what is imported here is too long or nested too deeply for Python \(MemoryError\)",
        f"d = {{{'1: 1,' * 900_000}}}\n": r"what is imported here is too long or nested too deeply for Python \(Mem",
        f"x = {'1+' * 100_000}1\n": r"what is imported here is nested too deeply for Python \(RecursionError\)",
        "x = 1\n\ny = '\0'\n": "^submission.py:3: contains a null byte: delete it, and save as UTF-8$",
        "def f():\n    return f()\nf()\n": "submission.py:2: RecursionError: maximum recursion depth exceeded",
    }
    for source, words in cases.items():
        fault = fault_of(client(source, helper="undefined\n" if "helper\n" in source else ""))
        assert fault.reason == "raised"
        assert re.search(words, str(fault)), str(fault)
        assert str(Path(sys.prefix)) not in fault.detail
        assert "goldformer" not in fault.detail


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["submission", "helper"])
def test_a_file_in_utf_16_is_named_with_how_to_save_it(sandbox, tmp_path, encoding, name):
    """Some editors of Windows save so; Python names the line that imports it, perhaps of the staff's adapter."""
    code = make_folder(tmp_path / "code", "import helper\n", helper="x = 1\n")
    path = code / "submission" / f"{name}.py"
    path.write_bytes(path.read_text(encoding="utf-8").encode(encoding))
    one = sandbox.client(code)
    fault = fault_of(one)
    one.close()
    assert (fault.reason, str(fault)) == (
        "raised", f"{name}.py: is saved as UTF-16: save it as UTF-8 (in an editor of Windows: Save as, Encoding)",
    )  # fmt: skip


@pytest.mark.parametrize("raised", ["GeneratorExit", "KeyboardInterrupt('x')", "Own"])
def test_an_exception_that_ends_the_process_shows_files_of_the_submission_alone(client, raised):
    source = f"class Own(BaseException): pass\ndef softmax(scores): raise {raised}\n"
    fault = fault_of(client(source))
    ended = ("crashed", "the process ended with exit status 1 when it was asked for softmax")
    assert (fault.reason, str(fault)) == (ended if "Keyboard" in raised else ("raised", f"{raised}: "))
    assert re.findall(r'File "([^"]*)"', fault.detail) == ["adapter.py", "submission.py"]
    assert f"raise {raised}" in fault.detail
    assert "SystemExit" not in fault.detail


def test_a_submission_that_is_not_there_says_so(sandbox, tmp_path):
    code = make_folder(tmp_path / "code", "")
    (code / "submission" / "submission.py").rename(code / "submission" / "my_work.py")
    (code / "adapter.py").write_text("from submission import softmax\n")
    one = sandbox.client(code)
    fault = fault_of(one)
    one.close()
    assert (fault.reason, str(fault)) == (
        "raised",
        "adapter.py:1: ImportError: cannot import name 'softmax' from 'submission' (unknown location)",
    )


def test_a_traceback_names_files_of_the_submission_alone(client):
    source = "import numpy as np\ndef inner(x): return np.linalg.inv(x)\ndef softmax(scores): return inner(scores)\n"
    fault = fault_of(client(source))
    files = re.findall(r'File "([^"]*)"', fault.detail)
    own = [name for name in files if not name.startswith("numpy/")]
    assert own == ["adapter.py", "submission.py", "submission.py"]
    assert files[-1].startswith("numpy/linalg/")


def test_what_it_prints_is_kept_apart_from_its_answers(client):
    one = client(SOFTMAX.replace("    e =", '    print(\'{"jsonrpc": "2.0"}\', flush=True)\n    e ='))
    assert softmax_of(one).sum() == pytest.approx(1)
    assert one._child.stderr_tail() == '{"jsonrpc": "2.0"}'


@pytest.mark.parametrize("when", ["import", "call", "thread"])
def test_a_line_that_nobody_asked_for_is_tampering(client, when):
    forged = {"jsonrpc": "2.0", "id": 1, "result": {"output": {"dtype": "float64", "shape": [], "data": [1.0]}}}
    if when == "import":
        forged["result"] = {"protocol": 1, "name": "x", "components": ["softmax"]}
    write = f"os.write(3, {(json.dumps(forged) + chr(10)).encode()!r})"
    if when == "thread":
        write = f"import threading; threading.Timer(0.2, lambda: {write}).start()"
    source = f"import os\n{write if when == 'import' else ''}\n{SOFTMAX}"
    if when != "import":
        source = source.replace("    e =", f"    {write}\n    e =", 1)
    one = client(source)
    if when == "call":
        assert fault_of(one).reason == "tampered"
        return
    one.start() if when == "import" else softmax_of(one)
    time.sleep(0.5)
    fault = fault_of(one)
    assert fault.reason == "tampered"
    assert "asked" in str(fault) or "id is 1, expected 2" in str(fault)


class _Talkative:
    """A process that answers everything with the same line."""

    owner = os.getpid()

    def __init__(self, line: bytes) -> None:
        self.line, self.asked = line, 0

    def exchange(self, message: bytes, seconds: float) -> bytes:
        del seconds
        self.asked += 1
        if self.asked == 1:
            hello = {"protocol": 1, "name": "s", "version": "1", "components": ["softmax"]}
            return json.dumps({"jsonrpc": "2.0", "id": json.loads(message)["id"], "result": hello}).encode()
        return self.line

    def measure_cpu(self) -> float:
        return 0.0

    def stop(self) -> None:
        pass

    def end(self, grace: float = 0.0) -> None:
        pass

    def stderr_tail(self) -> str:
        return ""


def test_millions_of_numbers_that_are_written_out_are_not_decoded() -> None:
    line = b'{"jsonrpc":"2.0","id":2,"result":{"output":{"dtype":"float64","shape":[1],"data":[' + b"0.5," * 10_000_000
    talkative = _Talkative(line + b"1]}}}")
    client = SandboxClient(lambda: talkative, Limits())
    before = time.process_time()
    with pytest.raises(
        CallFault, match=f"writes out more than {MOST_WRITTEN} numbers: they are sent as bytes"
    ) as raised:
        client.call("softmax", {})
    assert raised.value.reason == "protocol"
    assert time.process_time() - before < 0.5
