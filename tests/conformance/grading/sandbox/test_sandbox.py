"""The code of a submission can reach nothing but the interpreter and itself."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sandboxes
from goldformer.conformance.grading.sandbox import Limits, Sandbox
from goldformer.conformance.grading.sandbox import _isolation as isolation
from goldformer.conformance.grading.sandbox import _landlock as landlock
from goldformer.spec import ROOT
from repository import REPOSITORY, SUPPORT
from sandboxes import NOBODY, WALLS, found_by, make_sandbox

LIMITS = Limits(memory=1024, processes=8, file=2)
#: What is left out for each test to see what the rest holds back.
WITHOUT = {"full": (), "landlock-alone": ("mount-namespace",), "process": WALLS}


@pytest.fixture(scope="module", params=WITHOUT)
def sandbox(request):
    with make_sandbox(LIMITS, "numpy", without=WITHOUT[request.param]) as made:
        yield made


@pytest.fixture
def found(sandbox, tmp_path):
    """Return a function that runs the source of a submission and returns its findings."""
    return lambda source: found_by(sandbox, tmp_path / "code", source)


@pytest.fixture
def apart(sandbox):
    """Skip where files are not kept apart."""
    if sandbox.isolation.level == "process":
        pytest.skip("level process keeps no files apart")


@pytest.fixture
def alone(sandbox):
    """Skip where processes and the network are not kept apart."""
    if not {"network-namespace", "pid-namespace", "ipc-namespace"} <= set(sandbox.isolation.features):
        pytest.skip(f"level {sandbox.isolation.level} has no namespaces")


TRIED = """
def tried(action, *arguments):
    try:
        return action(*arguments) or "done"
    except BaseException as error:
        return type(error).__name__
"""


def test_files_of_this_machine_cannot_be_read(found, apart, tmp_path):
    other = tmp_path / "other" / "submission.py"
    other.parent.mkdir()
    other.write_text("theirs = 1")
    os.chmod(tmp_path, 0o755)
    paths = [
        ROOT / "cases" / "softmax.yaml", REPOSITORY / "reference_impl" / "__init__.py", REPOSITORY / "README.md",
        REPOSITORY / "src" / "goldformer" / "spec" / "load.py", Path(__file__), "/etc/passwd", "/proc/self/environ",
        "/proc/1/cmdline", other,
    ]  # fmt: skip
    source = f"{TRIED}\ndef found(): return [tried(lambda: open(p).read(1)) for p in {list(map(str, paths))}]"
    assert set(found(source)) <= {"FileNotFoundError", "PermissionError"}


def test_folders_of_this_machine_cannot_be_listed(found, apart, tmp_path):
    paths = [str(ROOT), str(REPOSITORY), "/home", "/root", "/proc", "/etc/ssl", str(tmp_path)]
    source = f"import os{TRIED}\ndef found(): return [tried(os.listdir, p) for p in {paths}]"
    answers = found(source)
    # Of /root there may be the folders that lead to Python, and no more.
    assert [a for a in answers if isinstance(a, list) and a not in (["pyenv"], [".pyenv"])] == []


def test_the_code_of_a_submission_is_out_of_reach_of_others(sandbox, tmp_path):
    """Two run at once: each may read its own copy, and no other user may read either."""
    if os.geteuid() != 0:
        pytest.skip("all processes of an ordinary user are the same user")
    look = f"""
import os
def found():
    walked = os.walk({str(sandbox.folder)!r})
    paths = [os.path.join(at, name) for at, _, names in walked for name in names if name == "secret.py"]
    return [os.path.dirname(path) for path in paths if os.access(path, os.R_OK)]
"""
    own = "import os, secret\ndef found(): return os.access(secret.__file__, os.R_OK) and secret.KEY"
    with sandboxes.clients(sandbox, tmp_path) as make:
        running = make(own, sandboxes.ASKING, secret="KEY = 'golden'")
        assert "'golden'" in str(sandboxes.fault_of(running))
        assert found_by(sandbox, tmp_path / "second", look) == []


def test_nothing_can_be_written_but_its_own_folder(found, apart):
    source = f"""
import os, sys, sysconfig, submission
{TRIED}
code = os.path.dirname(os.path.dirname(submission.__file__))
places = [code, code + "/submission", sysconfig.get_paths()["purelib"], sys.prefix, os.path.dirname(os.__file__), "/",
    "/etc", "/var/tmp", "/dev", os.environ["TMPDIR"]]
def wrote(folder):
    with open(folder + "/x.txt", "w") as file: file.write("x")
def found():
    mine = [tried(os.chmod, submission.__file__, 0o777), tried(os.remove, submission.__file__)]
    return mine, [tried(wrote, p) for p in places], os.getcwd() == os.environ["HOME"] == os.environ["TMPDIR"]
"""
    mine, answers, at_home = found(source)
    assert answers[-1] == "done"
    assert set(answers[:-1]) <= {"OSError", "PermissionError", "FileNotFoundError"}
    assert mine[1] != "done"
    assert at_home


def test_what_judges_is_neither_in_memory_nor_to_be_imported(found):
    source = f"""
import gc, importlib, sys
{TRIED}
names = ["goldformer.reference_impl", "goldformer.spec.oracle", "goldformer.adapters.textbook",
    "goldformer.conformance.diagnosis.mistakes", "goldformer.conformance.diagnosis.imitation",
    "goldformer.conformance.judging.cases"]
def found():
    held = {{type(thing).__name__ for thing in gc.get_objects()}}
    ours = [name for name in sys.modules if name.startswith("goldformer.")]
    return [tried(importlib.import_module, name) for name in names], ours, held & {{"Case", "Mistake", "Spec"}}
"""
    imports, modules, held = found(source)
    assert set(imports) == {"ModuleNotFoundError"}
    packages = ("reference_impl", "spec.oracle", "adapters.textbook", "adapters.builtin")
    assert [name for name in modules if name.removeprefix("goldformer.").startswith(packages)] == []
    conformance = {name for name in modules if "conformance" in name}
    assert {name.partition(".grading.sandbox")[0] for name in conformance} == {
        "goldformer.conformance", "goldformer.conformance.grading",
    }  # fmt: skip
    assert held <= {"Spec"}  # the contracts, which everybody may read


def test_the_cases_of_the_spec_that_it_holds_are_none(found):
    source = """
import gc
def found(): return [(len(s.contracts) > 20, len(s.cases), len(s.mistakes)) for s in gc.get_objects()
    if type(s).__name__ == "Spec"]
"""
    assert found(source) in ([], [(True, 0, 0)])


def test_it_inherits_nothing(found, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "secret")
    source = """
import os, stat
def found():
    open_ones = []
    for number in range(256):
        try: open_ones.append((number, stat.S_IFMT(os.fstat(number).st_mode)))
        except OSError: pass
    kinds = {stat.S_IFCHR: "device", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return [(n, kinds.get(k)) for n, k in open_ones], dict(os.environ), os.umask(0), os.getgroups()
"""
    descriptors, environment, umask, groups = found(source)
    # No socket: over one, files can be handed to whoever reads, and closing one of those may take an hour.
    assert descriptors == [(0, "device"), *((number, "pipe") for number in (1, 2, 3, 4))]
    assert set(environment) == {
        "HOME", "TMPDIR", "PATH", "LANG", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
    }  # fmt: skip
    assert umask == 0o077
    assert groups in ([], [NOBODY])


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.sample(2)
@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize("umask", [0o027, 0o077], ids="{:03o}".format)
@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_the_umask_of_whoever_grades_changes_no_isolation(umask, without, tmp_path):
    """Servers, cron and systemd units have such a umask."""
    with make_sandbox(LIMITS, "numpy", without=without) as usual:
        os.umask(umask)
        with Sandbox(LIMITS, "numpy", without=without) as strict:
            assert strict.isolation == usual.isolation
            assert found_by(strict, tmp_path / "code", "import colorsys\ndef found(): return 1") == 1


def test_it_is_nobody_and_can_become_nobody_else(found):
    source = f"""
import ctypes, os{TRIED}
libc = ctypes.CDLL(None)
def found():
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    return os.geteuid(), list(data), libc.prctl(39, 0, 0, 0, 0), tried(os.setuid, 0), tried(os.chroot, "/")
"""
    user, capabilities, no_new_privileges, setuid, chroot = found(source)
    assert user != 0
    assert capabilities == [0] * 6
    assert no_new_privileges == 1
    # In a user namespace there is no such user: that is no question of permission.
    assert {setuid, chroot} <= {"PermissionError", "OSError"}


def test_the_network_is_out_of_reach(found, alone):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        named.bind(f"\0goldformer-{os.getpid()}")
        named.listen()
        source = f"""
import socket{TRIED}
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: return s.sendto(b"x", {server.getsockname()})
def abstract():
    with socket.socket(socket.AF_UNIX) as s: s.connect({named.getsockname()!r})
def found(): return tried(socket.create_connection, {server.getsockname()}), tried(udp), tried(abstract)
"""
        assert set(found(source)) <= {"OSError", "PermissionError", "ConnectionRefusedError"}


def test_other_processes_are_out_of_reach(found, alone):
    source = f"""
import ctypes, os, signal{TRIED}
libc = ctypes.CDLL(None, use_errno=True)
def found():
    others = [{os.getpid()}, {os.getppid()}]
    traced = [libc.ptrace(16, pid, 0, 0) for pid in others]
    return os.getppid(), [tried(os.kill, pid, 0) for pid in others], traced, tried(os.kill, -1, signal.SIGKILL)
"""
    parent, signals, traced, everyone = found(source)
    assert parent == 0
    assert signals == ["ProcessLookupError"] * 2
    assert traced == [-1, -1]
    assert everyone == "ProcessLookupError"  # there is nobody else


def test_memory_of_the_processes_that_it_came_from_is_out_of_reach(found):
    source = f"""
import ctypes, os{TRIED}
libc = ctypes.CDLL(None, use_errno=True)
class Piece(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
def reached(pid):
    buffer = ctypes.create_string_buffer(8)
    here, there = Piece(ctypes.addressof(buffer), 8), Piece({id(None)}, 8)
    read = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return read, libc.ptrace(16, pid, 0, 0), tried(lambda: open(f"/proc/{{pid}}/mem", "rb").read(1))
def found(): return [reached(pid) for pid in (os.getppid(), {os.getpid()})]
"""
    for read, traced, opened in found(source):
        assert (read, traced) == (-1, -1)
        assert opened in ("FileNotFoundError", "PermissionError")


def test_system_calls_that_no_answer_needs_are_refused(sandbox, found):
    """Keys, namespaces, tracing, memory that no process has, sockets, priorities; what programs need still works."""
    if "system-calls" not in sandbox.isolation.features:
        pytest.skip("system-calls: " + sandbox.isolation.missing["system-calls"])
    source = f"""
import ctypes, errno, os, platform, resource, socket, subprocess, sys, threading{TRIED}
libc = ctypes.CDLL(None, use_errno=True)
def called(*given):
    ctypes.set_errno(0)
    return libc.syscall(*given) < 0 and errno.errorcode[ctypes.get_errno()]
keys = {{
    "x86_64": (278, 248, 249, 250, 272, 319, 29, 30, 31, 64, 66, 68, 71, 240, 112, 141, 142, 144, 203, 251, 256, 279,
               314, 206, 253, 294, 300),
    "aarch64": (75, 217, 218, 219, 97, 279, 194, 196, 195, 190, 191, 186, 187, 180, 157, 140, 118, 119, 122, 30, 238,
                239, 274, 0, 26, 262),
}}[platform.machine()]
def found():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    child = subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True).stdout
    clone = {{"x86_64": 56, "aarch64": 220}}[platform.machine()]
    spaces = [called(clone, flag | 17, 0, 0, 0, 0) for flag in (0x10000000, 0x20000, 0x40000000)]
    refused = [called(n, 0, 0, 0, 0) for n in (*keys, 425, 428, 430, 435, 438, 447, 457, 458, 467)]
    sockets = [*(tried(socket.socket, kind) for kind in (1, 2, 10, 16, 38, 40)), tried(socket.socketpair)]
    own, other = (tried(resource.prlimit, pid, resource.RLIMIT_NOFILE, (64, 64)) for pid in (0, os.getppid() or 1))
    return refused, spaces, sockets, own, other, child
"""
    refused, spaces, sockets, own, other, child = found(source)
    assert set(refused) == {"ENOSYS"}
    assert spaces == ["EPERM"] * 3
    # Not even those of one process: their buffers hold memory that is not its own.
    assert sockets == ["OSError"] * 7
    assert isinstance(own, tuple | list)
    assert other == "PermissionError"
    assert child == b"7\n"


def test_what_files_are_like_cannot_be_changed(sandbox, found):
    """Landlock covers no modes, owners, times, attributes or leases, and an ordinary user owns what others hand in."""
    if "system-calls" not in sandbox.isolation.features:
        pytest.skip("system-calls: " + sandbox.isolation.missing["system-calls"])
    source = f"""
import ctypes, errno, fcntl, os, pathlib, tempfile{TRIED}
libc = ctypes.CDLL(None, use_errno=True)
def newer(number):
    ctypes.set_errno(0)
    return libc.syscall(number, -100, b"f", 0, 0, 0, 0) < 0 and errno.errorcode[ctypes.get_errno()]
def found():
    pathlib.Path("f").touch()
    pathlib.Path("f").touch()
    with open("f") as file, tempfile.TemporaryDirectory():
        number = file.fileno()
        refused = [
            tried(os.chmod, "f", 0), tried(os.chmod, number, 0),
            tried(lambda: os.chmod("f", 0, dir_fd=os.open(".", 0))),
            tried(os.chown, "f", -1, -1), tried(os.chown, number, -1, -1), tried(os.lchown, "f", -1, -1),
            tried(os.utime, "f"), tried(os.utime, number), tried(os.setxattr, "f", "user.a", b""),
            tried(os.removexattr, "f", "user.a"), tried(fcntl.fcntl, number, fcntl.F_SETLEASE, fcntl.F_RDLCK),
            tried(fcntl.fcntl, os.open(".", 0), fcntl.F_NOTIFY, fcntl.DN_CREATE),
            *(tried(fcntl.fcntl, number, command, 0) for command in (8, 10, 15, 1031)),
            *(tried(fcntl.ioctl, number, command, bytes(64)) for command in (0x40086602, 0x401C5820, 0x40087602)),
            tried(os.truncate, "f", 0), tried(os.open, "f", os.O_RDONLY | os.O_TRUNC),
        ]
        with open("f", "w") as written:
            written.truncate(3)
        works = [os.isatty(number), fcntl.fcntl(number, fcntl.F_GETLEASE), os.path.getsize("f")]
        return refused, [newer(number) for number in (452, 463, 466, 469)], newer(437), works
"""
    refused, newer, opened, works = found(source)
    assert refused == ["PermissionError"] * 21
    assert newer == ["EPERM"] * 4
    assert opened == "ENOSYS"
    assert list(works) == [False, 2, 3]  # F_UNLCK: other commands work, and so does writing


def test_timers_are_limited(found):
    """They hold memory of the kernel, and count against all processes of an ordinary user."""
    source = """
import resource
def found(): return resource.getrlimit(resource.RLIMIT_SIGPENDING)
"""
    if sys.platform != "linux":
        pytest.skip("only Linux has this limit")
    assert max(found(source)) <= 256


@pytest.fixture
def readable():
    """A folder that every user can enter; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory(prefix="goldformer-readable-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("without", [(), ("mount-namespace",)])
def test_where_the_package_is_installed_it_is_covered(readable, without):
    folder = installed(readable)
    # As when the environment was made in the folder of the course.
    course = readable / "venv" / "graded" / "seed"
    course.parent.mkdir()
    course.write_text("secret", encoding="utf-8")
    source = f"""
import os{TRIED}
names = ("/spec/cases/softmax.yaml", "/__init__.py")
def found():
    here = [tried(lambda: open({str(folder)!r} + name).read(1)) for name in names]
    here.append(tried(open, {str(course)!r}))
    return here, "Error" not in str(tried(open, {str(folder.parent / "neighbour.py")!r}))
"""
    script = f"""
import sys
sys.path.append({str(SUPPORT)!r})
from sandboxes import found_by
from pathlib import Path
from goldformer.spec import ROOT
from goldformer.conformance.grading.sandbox import Limits, Sandbox, SandboxError
try: made = Sandbox(Limits(memory=1024), "numpy", "files", without={without})
except SandboxError as error: raise SystemExit(f"skip: {{error}}")
with made: print(ROOT, found_by(made, Path({str(readable / "code")!r}), {source!r}))
"""
    python = readable / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([python, "-c", script], check=False, capture_output=True, text=True, env=environment)
    if "skip: " in done.stderr:
        pytest.skip(done.stderr.splitlines()[1].strip())
    assert done.stdout.strip().startswith(f"{folder}/spec (['"), done.stderr
    assert set(re.findall(r"\w+Error", done.stdout)) <= {"FileNotFoundError", "PermissionError"}
    assert done.stdout.strip().endswith("True)")
    assert done.stdout.count("Error") == 3


def installed(folder):
    """Where the package lies in an environment into which it was installed from a wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (site,) = folder.glob("venv/lib/python*/site-packages")
    (site / "others.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    (site / "neighbour.py").write_text("")
    package = site / "goldformer"
    shutil.copytree(
        REPOSITORY / "src" / "goldformer", package, symlinks=False,
        ignore=lambda _, names: [n for n in names if n == "__pycache__" or n.startswith("test_")],
    )  # fmt: skip
    return package


@pytest.mark.parametrize(
    ("code", "closed", "says"),
    [
        (
            "/tmp/code", os.path.dirname(os.__file__),
            r"os\.py cannot be read by users other than root, because they cannot enter \S+; "
            r"run a Python that every user can read, such as /usr/bin/python3 in an environment outside of it",
        ),
        ("/tmp/code", os.__file__, r"os\.py cannot be read by users other than root, because of its mode; run a "),
        (
            "/closed/tmp/code", "/closed",
            r"/closed/tmp/code cannot be read by users other than root, because they cannot enter /closed; "
            r"set TMPDIR to a folder that every user can enter, such as /tmp",
        ),
    ],
)  # fmt: skip
def test_what_other_users_cannot_read_is_explained(code, closed, says, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode and str(path).startswith(closed)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    setup = isolation.SandboxSetup(code, "/tmp", "/", 1000, LIMITS)
    with pytest.raises(OSError, match=f"{says}") as caught:
        isolation._drop_root(setup)
    assert f"cannot enter {closed};" in str(caught.value) or closed.endswith(".py")


def test_landlock_is_in_force_where_the_kernel_has_it(sandbox):
    if sandbox.isolation.missing.get("landlock", "left out") != "left out":
        with pytest.raises(OSError, match="landlock"):
            landlock.find_version()


def test_random_numbers_are_the_same_in_every_process(sandbox, tmp_path):
    source = "import random\nimport numpy as np\ndef found(): return random.random(), float(np.random.rand())"
    assert found_by(sandbox, tmp_path / "one", source) == found_by(sandbox, tmp_path / "two", source)


def run_as_nobody(*words, **environment):
    """Run Python as the ordinary user nobody; skip if that user cannot reach it and root cannot make namespaces."""
    done = subprocess.run(
        [sys.executable, sandboxes.__file__, sys.executable, *words], check=False,
        capture_output=True, text=True, timeout=300, cwd=REPOSITORY, env={**os.environ, **environment},
    )  # fmt: skip
    if "PermissionError" in done.stderr and not done.stdout:
        pytest.skip(f"nobody cannot run the tests here: {done.stderr.splitlines()[-1]}")
    return done


@pytest.fixture
def nobodys():
    """A folder of nobody's, where every user can reach it."""
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    with tempfile.TemporaryDirectory(prefix="goldformer-nobody-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        yield folder


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_what_lies_in_a_folder_of_root_alone_is_tested_as_nobody(nobodys, tmp_path, mode):
    """As a checkout in the home folder of root."""
    locked = tmp_path / "locked"
    modules = locked / "inner" / "modules"
    modules.mkdir(parents=True)
    for folder in (locked, locked / "inner"):
        folder.chmod(0o700)
    modules.chmod(mode)
    (modules / "hidden.py").write_text("WORD = 'found'\n", encoding="utf-8")
    (modules / "link").symlink_to("hidden.py")
    (locked / "other.py").write_text("", encoding="utf-8")
    source = (
        "import os, sys, hidden\n"
        f"folder = {str(modules)!r}\n"
        "print(os.geteuid(), hidden.WORD, os.path.exists(folder + '/link'), os.listdir(folder + '/../..'))\n"
    )
    done = run_as_nobody("-B", "-c", source, PYTHONPATH=str(modules), HOME=nobodys)
    assert (done.stdout, done.stderr) == (f"{NOBODY} found True ['inner']\n", "")
    # For everyone else nothing has changed.
    assert sorted(os.listdir(locked)) == ["inner", "other.py"]


def test_ordinary_users_are_protected_alike(nobodys):
    here = Path(__file__)
    words = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp", f"{nobodys}/pytest", str(here)]
    processes = here.with_name("test_processes.py")
    words += [f"{processes}::test_what_it_leaves_running_ends_with_it"]
    words += [f"{processes}::test_the_number_of_its_processes_is_limited"]
    words += [f"{processes}::test_elsewhere_than_on_linux_there_are_limits"]
    # On the best level that an ordinary user has.
    words += ["-k", "(full or leaves_running or elsewhere or random) and not installed"]
    done = run_as_nobody(*words, HOME=nobodys, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 10, done.stdout
