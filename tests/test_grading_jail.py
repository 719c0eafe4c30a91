"""A jail's processes: how they are started, limited and ended, and what is said to students."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from boxes import ADAPTER, SCORES, WALLS, fault_of, found_by, make_box
from goldformer.adapters.process.client import adapter_object
from goldformer.adapters.process.faults import CallFault
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.engine import Bench, check_case
from goldformer.conformance.grading.jail import Jail, JailError, probe
from goldformer.conformance.grading.levels import NEEDED, demand, isolation
from goldformer.conformance.grading.model import LEVELS, Isolation, Limits
from goldformer.conformance.verdict import Status

LIMITS = Limits(call=2.0, start=5.0, total=60.0, cpu=20, memory=512, processes=8, file=2)
SOFTMAX = """\
import numpy as np
def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""
DOING = "import ctypes, os, signal, sys, time\nimport numpy as np\ndef softmax(scores):\n    {}\n"


@pytest.fixture(scope="module")
def jail():
    with Jail(LIMITS, "numpy") as made:
        yield made


@pytest.fixture
def client(jail, tmp_path):
    """The client of a submission with a source."""
    made = []

    def make(source, adapter=ADAPTER, *, of=jail, **others):
        made.append(of.client(make_box(tmp_path / f"box{len(made)}", source, adapter, **others)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def softmax_of(client):
    """The softmax that it gives."""
    return client.call("softmax", SCORES)["output"].values


def test_a_submission_is_judged_as_any_adapter(jail, client, spec):
    thing = adapter_object(client(SOFTMAX), spec.contracts)
    bench = Bench(spec, Adapter.from_object(thing, "submission", spec), "float32", "cpu")
    assert check_case(spec.cases["sm-several-rows"], bench).status is Status.PASSED
    absent = check_case(spec.cases["sdpa-causal"], bench)
    assert (absent.status, absent.reason) == (Status.SKIPPED, "not-implemented")


@pytest.mark.parametrize(
    ("doing", "reason", "words"),
    [
        ("os._exit(7)", "crashed", "the process ended with exit status 7 when it was asked for softmax"),
        ("ctypes.string_at(0)", "killed", "the process was ended by signal SIGSEGV when it was asked for softmax"),
        ("time.sleep(60)", "timeout", "the process gave no answer within 2 s when it was asked for softmax"),
        ("return np.ones(1 << 30)", "memory", "used more than 512 MiB of memory: .*MemoryError: .*"),
        ("bytearray(1 << 30)", "memory", "used more than 512 MiB of memory: MemoryError: "),
        ("print('x' * (3 << 20)); return scores", "output-limit", "the process printed more than 1 MiB .*softmax"),
        ("open('big', 'wb').write(bytes(3 << 20))", "output-limit", "wrote more than 2 MiB to files: OSError.*"),
        ("sys.exit(0)", "raised", "SystemExit: 0"),
        ("raise ValueError('scores: bad')", "raised", "ValueError: scores: bad"),
        ("os.closerange(3, 99); time.sleep(9)", "protocol", "the process closed its connection and goes on running.*"),
        ("os.write(3, b'nonsense\\n'); time.sleep(9)", "protocol", "the process wrote what is no answer to softmax.*"),
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
    with Jail(limits, "numpy") as jail:
        one = jail.client(make_box(tmp_path / "box", DOING.format("while True: pass")))
        fault = fault_of(one)
        one.close()
    assert (fault.reason, str(fault)) == (
        "timeout", "the process used more than 1 s of processor time when it was asked for softmax",
    )  # fmt: skip


def test_memory_of_all_its_processes_counts_together(jail, client):
    if "cgroup" not in jail.isolation.features:
        pytest.skip(jail.isolation.missing["cgroup"])
    hold = """
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(b'x') * (200 << 20)
            time.sleep(60)
    held = bytearray(b'x') * (200 << 20)
    time.sleep(60)"""
    fault = fault_of(client(DOING.format(hold)))
    # The kernel ends one of the five: this one, or another and then this one goes on waiting.
    assert fault.reason in ("memory", "timeout")


def test_a_fork_bomb_meets_its_limit_and_no_one_else_does(jail, tmp_path):
    source = """
import os, time
def found():
    made = 0
    while True:
        try: pid = os.fork()
        except OSError as error: return made, type(error).__name__
        if pid == 0: time.sleep(60); os._exit(0)
        made += 1
        if made > 40: return made, "no limit"
"""
    if "process-limit" not in jail.isolation.features:
        pytest.skip(jail.isolation.missing["process-limit"])
    assert found_by(jail, tmp_path / "box", source) == (LIMITS.processes - 1, "BlockingIOError")
    assert found_by(jail, tmp_path / "next", "def found(): return 'well'") == "well"


def test_a_submission_that_cannot_be_imported_says_where(client):
    cases = {
        "def softmax(scores:\n    pass\n": r"submission.py:1: SyntaxError: '\(' was never closed",
        "import nothing_of_this_name\n": "submission.py:1: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "\n\nimport sys\nsys.exit(3)\n": "submission.py:4: SystemExit: 3",
        "def f():\n    return 1 / 0\nf()\n": "submission.py:2: ZeroDivisionError: division by zero",
        "import helper\n": "helper.py:1: NameError: name 'undefined' is not defined",
        "x = 1\n": "module 'submission' has no attribute 'softmax'",
    }
    for source, words in cases.items():
        fault = fault_of(client(source, helper="undefined\n"))
        assert fault.reason == "raised"
        assert re.search(words, str(fault)), str(fault)
        assert str(Path(sys.prefix)) not in fault.detail
        assert "goldformer" not in fault.detail


def test_a_submission_that_is_not_there_says_so(jail, tmp_path):
    box = make_box(tmp_path / "box", "")
    (box / "submission" / "submission.py").rename(box / "submission" / "my_work.py")
    (box / "adapter.py").write_text("from submission import softmax\n")
    one = jail.client(box)
    fault = fault_of(one)
    one.close()
    assert (fault.reason, str(fault)) == (
        "raised",
        "adapter.py:1: ImportError: cannot import name 'softmax' from 'submission' (unknown location)",
    )


def test_a_traceback_names_files_of_the_submission_alone(client):
    source = "import numpy as np\ndef inner(x):\n    return np.linalg.inv(x)\ndef softmax(scores):\n    return inner(scores)\n"
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


def test_after_its_whole_time_no_process_is_started(tmp_path):
    with Jail(Limits(call=5.0, total=1.0, memory=512), "numpy") as jail:
        one = jail.client(make_box(tmp_path / "box", DOING.format("time.sleep(60)")))
        said = "the time of 1 s for the whole submission is used up"
        assert [(fault.reason, str(fault)) for fault in (fault_of(one), fault_of(one))] == [("timeout", said)] * 2
        assert one._child is None


@pytest.mark.parametrize("level", ["full", "process"])
def test_what_it_leaves_running_ends_with_it(tmp_path, level):
    name = f"gf{os.getpid()}{level[:3]}"
    source = f"""
import ctypes, os, time
def softmax(scores):
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
                time.sleep(300)
            os._exit(0)
    time.sleep(0.3)
    return scores
"""
    try:
        jail = Jail(LIMITS, "numpy", without=WALLS if level == "process" else ())
    except JailError:
        pytest.skip("not on this machine as this user")
    with jail:
        one = jail.client(make_box(tmp_path / "box", source))
        softmax_of(one)
        assert len(named(name)) == 2
        one.close()
        assert named(name) == []


def named(name):
    """The processes of a name."""
    return [p for p in Path("/proc").iterdir() if p.name.isdecimal() and said(p / "comm").strip() == name]


def said(path):
    """What a file says, if it is still there."""
    try:
        return path.read_text()
    except OSError:
        return ""


def below(pid):
    """All processes below one."""
    children = [int(w) for task in Path(f"/proc/{pid}/task").glob("*") for w in said(task / "children").split()]
    return children + [d for child in children for d in below(child)]


def test_hundreds_of_processes_leave_nothing_behind(jail, tmp_path):
    box = make_box(tmp_path / "box", SOFTMAX)
    zygote = jail._zygote._process.pid

    def left():
        gc.collect()
        held = [len(os.listdir(f"/proc/{pid}/fd")) for pid in below(zygote) if os.geteuid() == 0]
        return len(os.listdir("/proc/self/fd")), held, len(below(zygote)), sorted(os.listdir(jail._folder))

    with_one = jail.client(box)
    softmax_of(with_one)
    with_one.close()
    before = left()
    for i in range(200):
        one = jail.client(box)
        one.start()
        if i % 20 == 0:
            os.kill(below(zygote)[-1], signal.SIGKILL)
            assert fault_of(one).reason in ("killed", "crashed")
        one.close()
    assert left() == before


def test_the_jail_survives_what_is_done_in_it_and_starts_again_when_it_does_not(tmp_path):
    box = make_box(tmp_path / "box", SOFTMAX)
    with Jail(LIMITS, "numpy") as jail:
        first = jail.client(box)
        softmax_of(first)
        os.kill(jail._zygote._process.pid, signal.SIGKILL)
        with pytest.raises(JailError, match="the process that submissions are forked from"):
            for _ in range(3):
                time.sleep(0.2)
                softmax_of(first)
        second = jail.client(box)
        assert softmax_of(second).sum() == pytest.approx(1)
        second.close()


def test_it_ends_with_the_process_that_started_it(tmp_path):
    box = make_box(tmp_path / "box", DOING.format("time.sleep(300)"))
    source = f"""
    import os, signal, threading, time
    from pathlib import Path
    from goldformer.conformance.grading.jail import Jail
    from goldformer.conformance.grading.model import Limits
    jail = Jail(Limits(memory=512), "numpy")
    one = jail.client(Path({str(box)!r}))
    one.start()
    threading.Thread(target=lambda: one.call("softmax", {{}})).start()
    print(jail._zygote._process.pid, flush=True)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=60, env=environment
    )
    launcher = int(done.stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{launcher}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{launcher}").exists()
    assert [p for p in Path("/proc").iterdir() if p.name.isdecimal() and str(box) in said(p / "cmdline")] == []


def test_a_jail_started_by_a_thread_outlives_the_thread(tmp_path):
    import threading

    made = []
    thread = threading.Thread(target=lambda: made.append(Jail(LIMITS, "numpy")))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with made[0] as jail:
        one = jail.client(make_box(tmp_path / "box", SOFTMAX))
        assert softmax_of(one).sum() == pytest.approx(1)
        one.close()


def test_torch_works_in_a_box_and_its_memory_is_limited(tmp_path, spec):
    adapter = 'ARRAYS = "torch"\nimport submission\nsoftmax = submission.softmax\n'
    source = """
import torch
def softmax(scores):
    if scores.dim() == 2: return torch.ones(1 << 40)
    return torch.softmax(scores, -1)
"""
    with Jail(Limits(memory=2048), "torch") as jail:
        one = jail.client(make_box(tmp_path / "box", source, adapter))
        thing = adapter_object(one, spec.contracts)
        bench = Bench(spec, Adapter.from_object(thing, "submission", spec), "float32", "cpu")
        assert check_case(spec.cases["sm-one-row-by-hand"], bench).status is Status.PASSED
        gradient = one.call("softmax_gradient", {**SCORES, "cotangent": SCORES["scores"]})
        assert np.isfinite(gradient["scores"].values).all()
        fault = pytest.raises(
            CallFault, one.call, "softmax", {"scores": SCORES["scores"].__class__("float64", np.eye(2))}
        )
        assert (fault.value.reason, str(fault.value)[:34]) == ("memory", "used more than 2048 MiB of memory:")
        one.close()


def test_a_memory_limit_below_what_python_takes_is_refused():
    with pytest.raises(JailError, match="limits.memory is 16 MiB, and numpy alone takes"):
        Jail(Limits(memory=16), "numpy")


def test_each_level_has_what_those_before_it_have_and_says_what_it_lacks():
    have = []
    for level in LEVELS:
        have += [group[0] for group in NEEDED[level]]
        assert isolation(have, {}).level == level
    found = isolation(have[:-1], {"process-limit": "root may have any number of processes"})
    assert found.level == "files"
    demand(found, "files")
    with pytest.raises(JailError) as caught:
        demand(found, "full")
    assert str(caught.value).splitlines() == [
        "isolation full cannot be had on this machine:",
        "  no process-limit or cgroup (process-limit: root may have any number of processes; cgroup: not there)",
        "    needs to be run by an ordinary user, or to have a control group that can be written to",
    ]
    assert not isinstance(caught.value, Exception)  # nothing may take it for a submission's fault


def test_this_machine_says_how_submissions_are_kept_apart():
    found = probe()
    assert isinstance(found, Isolation)
    assert found.level in LEVELS
    assert not set(found.features) & set(found.missing)


def test_a_jail_that_is_to_do_without_says_what_it_lacks():
    try:
        made = Jail(LIMITS, "numpy", "full", without=("network-namespace",))
    except JailError as error:
        assert "no network-namespace (network-namespace: left out)" in str(error)
    else:
        made.close()
        pytest.fail("it claims to be full")
