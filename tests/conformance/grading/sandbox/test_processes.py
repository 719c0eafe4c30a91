"""A sandbox's processes: how they are started and ended, and how well they are kept apart."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from goldformer.adapters.dtypes import WireArray
from goldformer.adapters.process.child import ChildFault
from goldformer.adapters.process.client import adapter_object
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.grading.sandbox import LEVELS, Isolation, Limits, Sandbox, SandboxError
from goldformer.conformance.grading.sandbox import _sandbox as door
from goldformer.conformance.grading.sandbox._client import SandboxProcess
from goldformer.conformance.grading.sandbox._launcher import is_ending
from goldformer.conformance.grading.sandbox._mounts import remove_folder
from goldformer.conformance.grading.sandbox._types import NEEDED, rate_isolation, require_level
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status
from sandboxes import (
    ASKING,
    DOING,
    LIMITS,
    SCORES,
    SOFTMAX,
    WALLS,
    clients,
    fault_of,
    found_by,
    make_folder,
    make_sandbox,
    softmax_of,
)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS, "numpy") as made:
        yield made


@pytest.fixture
def client(sandbox, tmp_path):
    """The client of a submission with a source."""
    with clients(sandbox, tmp_path) as make:
        yield make


def test_a_submission_is_judged_as_any_adapter(sandbox, client, spec):
    thing = adapter_object(client(SOFTMAX), spec.contracts)
    bench = Bench(spec, Adapter.from_object(thing, "submission", spec), "float32", "cpu")
    assert check_case(spec.cases["sm-several-rows"], bench).status is Status.PASSED
    absent = check_case(spec.cases["sdpa-causal"], bench)
    assert (absent.status, absent.reason) == (Status.SKIPPED, "not-implemented")


def test_a_process_that_is_stopped_ends_before_anybody_waits_for_it(client):
    one = client(SOFTMAX)
    one.start()
    process = one._child
    one.stop()
    deadline = time.monotonic() + 30
    while not process._look()["ended"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process._look()["ended"]
    one.stop()
    one.close()
    assert process._end()["status"] == -signal.SIGKILL
    assert one.call("softmax", SCORES)  # another process


@pytest.mark.parametrize("level", ["full", "process"])
def test_what_it_leaves_running_ends_with_it(tmp_path, level):
    name = f"gf{os.getpid()}{level[:3]}"
    source = f"""
import ctypes, os, time
def softmax(scores):
    for _ in range(2):
        if os.fork() == 0:
            try: os.setsid()
            except OSError: pass
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
                time.sleep(300)
            os._exit(0)
    time.sleep(0.3)
    return scores
"""
    sandbox = make_sandbox(LIMITS, "numpy", without=WALLS if level == "process" else ())
    with sandbox:
        one = sandbox.client(make_folder(tmp_path / "code", source))
        softmax_of(one)
        assert len(named(name)) == 2
        one.close()
        assert named(name) == []


def test_what_forks_faster_than_it_is_killed_one_by_one_ends_with_it(tmp_path):
    name = f"gf{os.getpid()}fast"
    source = f"""
import ctypes, os, time
def breed(end):
    ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
    while time.monotonic() < end:
        try:
            os.setpgid(0, 0)
        except OSError:
            pass
        try:
            if os.fork() and os.fork():
                os._exit(0)
        except OSError:
            pass
    os._exit(0)
def softmax(scores):
    if os.fork() == 0:
        breed(time.monotonic() + 20)
    time.sleep(0.5)
    return scores
"""
    sandbox = make_sandbox(
        replace(LIMITS, processes=48), "numpy", without=[wall for wall in WALLS if wall != "system-calls"]
    )
    with sandbox:
        if "system-calls" not in sandbox.isolation.features:
            pytest.skip(sandbox.isolation.missing["system-calls"])
        one = sandbox.client(make_folder(tmp_path / "code", source))
        softmax_of(one)
        assert named(name)
        one.close()
        assert named(name) == []


def named(name):
    """The processes of a name."""
    return [p for p in Path("/proc").iterdir() if p.name.isdecimal() and read_if_there(p / "comm").strip() == name]


def read_if_there(path):
    """Return the text of a file, or an empty text if it is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""


def below(pid):
    """All processes below one."""
    children = [
        int(w) for task in Path(f"/proc/{pid}/task").glob("*") for w in read_if_there(task / "children").split()
    ]
    return children + [d for child in children for d in below(child)]


def test_dozens_of_processes_leave_nothing_behind(sandbox, tmp_path):
    code = make_folder(tmp_path / "code", SOFTMAX)
    launcher = sandbox._launcher._process.pid

    def left():
        gc.collect()
        held = [len(os.listdir(f"/proc/{pid}/fd")) for pid in below(launcher) if os.geteuid() == 0]
        return len(os.listdir("/proc/self/fd")), held, len(below(launcher)), sorted(os.listdir(sandbox.folder))

    with_one = sandbox.client(code)
    softmax_of(with_one)
    with_one.close()
    before = left()
    for i in range(60):
        one = sandbox.client(code)
        one.start()
        if i % 20 == 0:
            os.kill(below(launcher)[-1], signal.SIGKILL)
            assert fault_of(one).reason in ("killed", "crashed")
        one.close()
    assert left() == before


def test_the_sandbox_survives_what_is_done_in_it_and_starts_again_when_it_does_not(tmp_path):
    code = make_folder(tmp_path / "code", SOFTMAX)
    with Sandbox(LIMITS, "numpy") as sandbox:
        first = sandbox.client(code)
        softmax_of(first)
        os.kill(sandbox._launcher._process.pid, signal.SIGKILL)
        time.sleep(0.5)
        with pytest.raises(SandboxError, match="the launcher of sandboxed processes"):
            softmax_of(first)
        second = sandbox.client(code)
        assert softmax_of(second).sum() == pytest.approx(1)
        second.close()


def test_it_ends_with_the_process_that_started_it(sandbox, tmp_path):
    code = make_folder(tmp_path / "code", DOING.format("time.sleep(300)"))
    source = f"""
    import os, signal, threading, time
    from pathlib import Path
    from goldformer.conformance.grading.sandbox import Limits, Sandbox
    sandbox = Sandbox(Limits(memory=512), "numpy")
    one = sandbox.client(Path({str(code)!r}))
    one.start()
    threading.Thread(target=lambda: one.call("softmax", {{}})).start()
    print(sandbox._launcher._process.pid, sandbox.folder, flush=True)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    words = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    launcher, folder = done.stdout.split()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{launcher}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{launcher}").exists()
    if "pid-namespace" in sandbox.isolation.features:
        assert not Path(folder).exists()
    remove_folder(Path(folder))
    assert [
        p for p in Path("/proc").iterdir() if p.name.isdecimal() and str(code) in read_if_there(p / "cmdline")
    ] == []


def test_a_process_that_is_ending_is_told_from_one_that_is_not():
    """One that has closed its descriptors may stand there for a while yet, and would be taken for alive."""
    sleeping = subprocess.Popen(["sleep", "60"])
    assert not is_ending(sleeping.pid)
    assert not is_ending(os.getpid())
    sleeping.kill()
    os.waitid(os.P_PID, sleeping.pid, os.WEXITED | os.WNOWAIT)
    assert is_ending(sleeping.pid), "a zombie"
    sleeping.wait()
    assert is_ending(sleeping.pid), "gone"


def test_a_sandbox_started_by_a_thread_outlives_the_thread(tmp_path):
    import threading

    made = []
    thread = threading.Thread(target=lambda: made.append(Sandbox(LIMITS, "numpy")))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with made[0] as sandbox:
        one = sandbox.client(make_folder(tmp_path / "code", SOFTMAX))
        assert softmax_of(one).sum() == pytest.approx(1)
        one.close()


def test_torch_works_in_a_sandbox_and_its_memory_is_limited(tmp_path, spec):
    adapter = 'ARRAYS = "torch"\nimport submission\nsoftmax = submission.softmax\n'
    source = """
import torch
def softmax(scores):
    if scores.dim() == 2: return torch.ones(1 << 40)
    return torch.softmax(scores, -1)
"""
    with Sandbox(Limits(memory=2048), "torch") as sandbox:
        one = sandbox.client(make_folder(tmp_path / "code", source, adapter))
        thing = adapter_object(one, spec.contracts)
        bench = Bench(spec, Adapter.from_object(thing, "submission", spec), "float32", "cpu")
        assert check_case(spec.cases["sm-one-row-by-hand"], bench).status is Status.PASSED
        gradient = one.call("softmax_gradient", {**SCORES, "cotangent": SCORES["scores"]})
        assert np.isfinite(gradient["scores"].values).all()
        fault = fault_of(one, {"scores": WireArray("float64", np.eye(2))})
        assert (fault.reason, str(fault)[:34]) == ("memory", "used more than 2048 MiB of memory:")
        one.close()


def test_a_memory_limit_below_what_python_takes_is_refused():
    with pytest.raises(SandboxError, match=r"limits\.memory is 16 MiB, and numpy alone takes"):
        Sandbox(Limits(memory=16), "numpy")


@pytest.mark.parametrize(("size", "memory"), [(663, 2048), (3220, 5120)])
def test_the_default_memory_follows_what_the_library_takes(monkeypatch, size, memory):
    """PyTorch with CUDA takes 3220 MiB of address space, and without it 663."""
    start = Sandbox._start_launcher

    def measure(sandbox):
        launcher = start(sandbox)
        launcher.size = size
        return launcher

    monkeypatch.setattr(Sandbox, "_start_launcher", measure)
    with Sandbox(Limits(), "numpy") as sandbox:
        assert (sandbox.size, sandbox.memory) == (size, memory)


def test_each_level_has_what_those_before_it_have_and_says_what_it_lacks():
    have = []
    for level in LEVELS:
        have += [group[0] for group in NEEDED[level]]
        assert rate_isolation(have, {}).level == level
    found = rate_isolation(have[:-1], {"process-limit": "root may have any number of processes"})
    assert found.level == "files"
    require_level(found, "files")
    with pytest.raises(SandboxError) as caught:
        require_level(found, "full")
    assert str(caught.value).splitlines() == [
        "isolation full cannot be had on this machine:",
        "  no process-limit or cgroup (process-limit: root may have any number of processes; cgroup: not there)",
        "    needs to be run by an ordinary user, or to have a control group that can be written to",
    ]
    assert not isinstance(caught.value, Exception)  # nothing may take it for a submission's fault


def test_this_machine_says_how_submissions_are_kept_apart():
    with Sandbox(LIMITS, "numpy") as sandbox:
        found = sandbox.isolation
    assert isinstance(found, Isolation)
    assert found.level in LEVELS
    assert not set(found.features) & set(found.missing)


def test_a_sandbox_that_is_to_do_without_says_what_it_lacks():
    with pytest.raises(SandboxError, match="isolation full cannot be had on this machine"):
        Sandbox(LIMITS, "numpy", "full", without=("network-namespace",))


def test_a_sandbox_belongs_to_the_process_that_made_it(sandbox, tmp_path):
    one = sandbox.client(make_folder(tmp_path / "code", SOFTMAX))
    pid = os.fork()
    if pid == 0:
        try:
            softmax_of(one)
        except SandboxError as error:
            os._exit(7 if "belongs to the process that made it" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert softmax_of(one).sum() == pytest.approx(1)
    one.close()


def test_elsewhere_than_on_linux_there_are_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(door, "_MAIN", f"import platform; platform.system = lambda: 'Darwin'; {door._MAIN}")
    sandbox = make_sandbox(LIMITS, "numpy")
    with sandbox:
        assert sandbox.isolation.level == "process"
        # There are no control groups elsewhere: here they are found where this machine has them.
        assert set(sandbox.isolation.features) - {"cgroup"} == {"unprivileged-user", "limits"}
        assert sandbox.isolation.missing["landlock"] == "landlock is a call of Linux"
        one = sandbox.client(make_folder(tmp_path / "code", SOFTMAX))
        assert softmax_of(one).sum() == pytest.approx(1)
        one.close()


@pytest.mark.parametrize("level", ["full", "process"])
def test_the_number_of_its_processes_is_limited(tmp_path, level):
    source = """
import os, time
def found():
    for made in range(30):
        try: pid = os.fork()
        except OSError: return made
        if pid == 0: time.sleep(60); os._exit(0)
    return "no limit"
"""
    sandbox = make_sandbox(LIMITS, "numpy", without=WALLS if level == "process" else ())
    with sandbox:
        if not {"process-limit", "cgroup"} & set(sandbox.isolation.features):
            pytest.skip(sandbox.isolation.missing["process-limit"])
        # Where a user's processes count together, others of that user may have ended meanwhile.
        assert found_by(sandbox, tmp_path / "code", source) in range(LIMITS.processes - 1, LIMITS.processes + 5)


#: Fills 100 MiB in each of six processes, and waits.
SIX = """
import os, time
def found():
    for number in range(6):
        if os.fork() == 0:
            PREPARE
            filled = bytearray(100 << 20)
            filled[::4096] = bytes(len(filled[::4096]))
            time.sleep(60)
    time.sleep(4)
    return "held"
"""


@pytest.mark.parametrize("prepare", ["pass", "os.fork() and os._exit(0)"])
def test_without_control_groups_the_sum_of_memory_is_watched(tmp_path, prepare):
    limits = replace(LIMITS, call=6.0, processes=16)
    sandbox = make_sandbox(limits, "numpy", "full", without=("cgroup",))
    with sandbox:
        assert "memory-watch" in sandbox.isolation.features
        one = sandbox.client(make_folder(tmp_path / "six", SIX.replace("PREPARE", prepare), ASKING))
        fault = fault_of(one)
        assert (fault.reason, "used more than 512 MiB of memory" in str(fault)) == ("memory", True)
        one.close()
        # One such process is within the limit, and the next submission is not blamed.
        source = SIX.replace("range(6)", "range(1)").replace("sleep(4)", "sleep(0.5)").replace("PREPARE", prepare)
        assert found_by(sandbox, tmp_path / "one", source) == "held"


def test_memory_that_is_watched_has_no_huge_pages(tmp_path):
    """The watch counts page faults, and one fault makes a whole huge page."""
    source = """
import ctypes
libc = ctypes.CDLL(None)
def found():
    before = libc.prctl(42, 0, 0, 0, 0)  # PR_GET_THP_DISABLE
    return before, libc.prctl(41, 0, 0, 0, 0), libc.prctl(42, 0, 0, 0, 0)
"""
    with make_sandbox(LIMITS, "numpy", "full", without=("cgroup",)) as sandbox:
        assert found_by(sandbox, tmp_path / "code", source) == (1, -1, 1)


@pytest.mark.parametrize("missing", ["system-calls", "memory-watch"])
def test_without_a_bound_on_all_memory_the_level_is_not_full(missing):
    whole = make_sandbox(LIMITS, "numpy", "full", without=("cgroup",))
    whole.close()
    with Sandbox(LIMITS, "numpy", without=("cgroup", missing)) as sandbox:
        assert sandbox.isolation.level == "files"
    with pytest.raises(SandboxError) as caught:
        Sandbox(LIMITS, "numpy", "full", without=("cgroup", missing))
    assert "no memory-watch or cgroup" in str(caught.value)


@pytest.mark.parametrize(
    ("each", "seconds", "late"), [(0.5, 60.0, "within 1 s of processor time"), (0.0, 0.5, "gave no answer")]
)
def test_a_call_is_limited_by_its_processor_time_and_by_the_clock(each, seconds, late):
    """The process waits for ever; the system says that each look finds more processor time, or none."""
    (requests, there), (back, replies), (printed, output) = os.pipe(), os.pipe(), os.pipe()
    used = itertools.count(7)  # what earlier calls have used does not count
    process = SandboxProcess(
        (there, back, printed), replace(LIMITS, start=1.0), lambda: {"ended": False, "cpu": each * next(used)},
        lambda: None, lambda: {"status": 0, "cpu": 0.0},
    )  # fmt: skip
    started = time.monotonic()
    try:
        with pytest.raises(ChildFault, match=late) as caught:
            process.exchange(b"{}\n", seconds)
    finally:
        process.end()
        for descriptor in (requests, replies, output):
            os.close(descriptor)
    assert caught.value.reason == "timeout"
    assert time.monotonic() - started < 30
