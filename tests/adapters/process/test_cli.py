"""goldformer serve and check with a process, and pytest with one in each worker; none is left behind."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from repository import REPOSITORY, SUPPORT

MISBEHAVING = SUPPORT / "misbehaving.py"
SUITE = REPOSITORY / "conformance"
GOLDFORMER = Path(sys.executable).with_name("goldformer")

CHATTY = """
import sys
print("importing")
ARRAYS = "numpy"
NAME = "chatty"
def softmax(scores):
    print("computing", sys.stdin.read())
    sys.stdout.write("no line break")
    import numpy as np
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""


def processes_of(file):
    """The processes that have the path of a file among their arguments and are running."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(file).encode() in words:
            found.append(int(folder.name))
    return found


@pytest.fixture
def hanging(tmp_path):
    """The name of an adapter that hangs at its first call, and the file by which its processes are found."""
    file = tmp_path / "done"
    return "cmd: " + shlex.join([sys.executable, "-S", str(MISBEHAVING), "hang", str(file)]), file


# serve


def served(adapter, *lines):
    text = "".join(f"{line}\n" for line in lines)
    words = [GOLDFORMER, "serve", adapter, "--encoding", "numbers"]
    return subprocess.run(words, input=text, capture_output=True, text=True, timeout=60, check=False)


SCORES = '{"dtype":"float64","shape":[2],"data":[0,0]}'
CALL = f'{{"jsonrpc":"2.0","id":1,"method":"softmax","params":{{"scores":{SCORES}}}}}'
SHUTDOWN = '{"jsonrpc":"2.0","id":2,"method":"shutdown","params":{}}'


def test_what_an_adapter_prints_and_reads_is_kept_from_the_messages(adapter_file):
    done = served(adapter_file(CHATTY), CALL, SHUTDOWN, CALL)
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert json.loads(first)["result"]["output"]["data"] == [0.5, 0.5]
    assert json.loads(second) == {"jsonrpc": "2.0", "id": 2, "result": None}
    assert done.stderr == "importing\ncomputing \nno line break"


@pytest.mark.parametrize(
    ("adapter", "says"), [("textbok", "Did you mean textbook?"), ("none.py", "none.py: no such file")]
)
def test_what_cannot_be_served_is_2(adapter, says):
    done = served(adapter, CALL)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


# check


def test_check_goes_on_after_a_fault_and_says_so(tmp_path):
    name = "cmd: " + shlex.join([sys.executable, "-S", str(MISBEHAVING), "exit_3", str(tmp_path / "done")])
    result = CliRunner().invoke(main, ["check", name, "--component", "softmax", "--dtype", "float64", "--json", "-"])
    assert result.exit_code == 1
    verdicts = json.loads(result.stdout)["verdicts"]
    assert [v["reason"] for v in verdicts if v["status"] == "errored"] == ["crashed"]
    assert sum(v["status"] == "passed" for v in verdicts) > 10
    assert processes_of(tmp_path / "done") == []


def test_check_waits_no_longer_than_it_is_told(hanging):
    name, file = hanging
    result = CliRunner().invoke(main, ["check", name, "--case", "sm-one-row-by-hand", "--timeout", "0.3"])
    assert result.exit_code == 1
    assert "ERRORED  sm-one-row-by-hand  (softmax, float32 on cpu)" in result.stdout
    assert "gave no answer within 0.3 s" in " ".join(result.stdout.split())
    # What is to be repeated waits as long.
    assert repeated(result.stdout).endswith(" --dtype float32 --timeout 0.3")
    assert processes_of(file) == []


def repeated(text):
    """The first command that a failure is to be repeated with."""
    return re.search(r"^(?:  Repeat +|Repeat: )(.*)$", text, re.MULTILINE).group(1)


def test_compare_waits_no_longer_than_it_is_told(hanging, tmp_path):
    name, file = hanging
    saved = tmp_path / "compared.json"
    options = ["--component", "softmax", "--dtype", "float64", "--timeout", "0.3", "--json", str(saved)]
    assert CliRunner().invoke(main, ["compare", name, *options]).exit_code == 1
    comparison = json.loads(saved.read_text(encoding="utf-8"))
    assert comparison["timeout"] == 0.3
    first = next(v for v in comparison["implementations"][0]["verdicts"] if v["status"] == "errored")
    assert (first["reason"], first["reproduce"].endswith(" --timeout 0.3")) == ("timeout", True)
    assert "gave no answer within 0.3 s" in first["message"]
    assert processes_of(file) == []


@pytest.mark.parametrize("options", [(), ("--timeout", "60")], ids=["none", "the default"])
def test_a_default_timeout_is_not_repeated(options, tmp_path):
    name = "cmd: " + shlex.join([sys.executable, "-S", str(MISBEHAVING), "exit_3", str(tmp_path / "done")])
    result = CliRunner().invoke(main, ["check", name, "--case", "sm-one-row-by-hand", *options])
    assert repeated(result.stdout).endswith("--case sm-one-row-by-hand --dtype float32")


def test_what_is_no_process_has_no_timeout(adapter_file):
    mine = adapter_file('ARRAYS = "numpy"\ndef softmax(scores):\n    return scores\n')
    result = CliRunner().invoke(main, ["check", mine, "--case", "sm-one-row-by-hand", "--timeout", "5"])
    assert repeated(result.stdout).endswith("--case sm-one-row-by-hand --dtype float32")


@pytest.mark.parametrize("command", ["check", "compare"])
@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_timeout_is_a_number_of_seconds(command, seconds):
    assert CliRunner().invoke(main, [command, "textbook", "--timeout", seconds]).exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_interrupted_leaves_no_process(number, hanging):
    name, file = hanging
    words = [GOLDFORMER, "check", name, "--case", "sm-one-row-by-hand"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as check:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert file.exists(), "it hangs"
        check.send_signal(number)
        check.communicate(timeout=30)
    assert check.returncode != 0
    assert processes_of(file) == []


# pytest


def test_each_worker_of_pytest_has_a_process_of_its_own(tmp_path, golden_cases):
    file = tmp_path / "done"
    file.touch()
    name = "cmd: " + shlex.join([sys.executable, "-S", str(MISBEHAVING), "hang", str(file)])
    options = shlex.split("--component softmax --dtype float64 -n 2 -q --call-timeout 20")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(SUITE / "test_golden.py"), "--adapter", name]
    words += options
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    judged, every = golden_cases("softmax", gradients=False), golden_cases("softmax")
    row = rf"^softmax +{judged} +· +2 +· +1/1 .* conforms \({judged} of {every} cases apply\)$"
    assert re.search(row, done.stdout, re.MULTILINE)
    assert processes_of(file) == []


def test_a_bad_timeout_of_pytest_is_a_usage_error(tmp_path):
    options = ("--adapter", "textbook", "--call-timeout", "0")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(SUITE / "test_golden.py"), *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--call-timeout 0: a number of seconds above 0" in done.stderr
