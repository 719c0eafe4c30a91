"""The lines that no golden case ran of the user's code, and the caches that nobody judged."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from click.testing import CliRunner

import goldformer
from goldformer.adapters.executed import Executed, Recorder
from goldformer.adapters.find import import_file
from goldformer.adapters.imports import is_own_file
from goldformer.conformance.cli import main
from goldformer.conformance.reports.never_ran import add_executed, read_never_ran
from repository import REPOSITORY

ATTENTION = "multi_head_attention"


def follow(path, text, calls, component=ATTENTION):
    """Return what no call ran of a file; `calls` get its module."""
    path.write_text(textwrap.dedent(text).lstrip())
    module = import_file(path)
    recorder = Recorder()
    with recorder.monitor(), recorder.follow(component):
        calls(module)
    return recorder.executed


def test_of_two_runs_each_notes_its_own_calls(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def f(x):\n    return x\n")
    module, mine, other = import_file(path), Recorder(), Recorder()
    with mine.monitor(), other.monitor(), other.follow(ATTENTION):
        module.f(1)
    assert (mine.executed.lines, other.executed.lines) == ({}, {str(path): {2}})


#: By name: the code, the calls, and what is said.
SAID = {
    "a branch": (
        """
        def f(x, mask=None):
            if mask is not None:
                x = x + mask
                x = x * 2
            return x
        """,
        lambda m: m.f([1]),
        "no golden case runs mine.py:3–4 (if mask is not None); no golden case passes mask",
    ),
    "the other branch, and what follows a return": (
        """
        def f(x, n):
            if n == 0:
                y = x
            else:
                y = -x
            if n == 0:
                return y
            return y + 1
        """,
        lambda m: m.f(1.0, 0),
        "no golden case runs mine.py:5 (unless n == 0), mine.py:8 (unless n == 0); n is always 0",
    ),
    "what raises, prints or makes a loss is left out": (
        """
        def f(x, targets=None, verbose=None):
            assert len(x), "empty"
            if len(x) > 9:
                raise ValueError("too long")
            if verbose:
                print(x)
            if targets is not None:
                return x, sum(targets)
            return x
        """,
        lambda m: m.f([1]),
        "no golden case passes verbose",
    ),
    "an argument with several values, a part that is not called, and a class that is not used": (
        """
        class Model:
            def __init__(self):
                self.part = abs
            def __call__(self, x, scale=1.0, start=0):
                return self.part(x) * scale
            def generate(self, x):
                return self(x)
            def count(self):
                return 0
        class Other(Model):
            def sample(self, x):
                return self(x)
        """,
        lambda m: [m.Model()(n, start=n) for n in (1, 2)],
        "no golden case runs Model.generate(); scale is always 1.0",
    ),
    "a loop and a condition that is long": (
        """
        def f(xs):
            for x in xs:
                y = x
            if all(isinstance(x, int) and x > 0 and x < 100 and x != 17 for x in xs) and xs:
                return 1
            return 2
        """,
        lambda m: m.f(()),
        "no golden case runs mine.py:3 (for each of xs), mine.py:5 "
        "(if all((isinstance(x, int) and x > 0 and (x < 100) and (x != 17…)",
    ),
    "all of it": ("def f(x):\n    return x", lambda m: m.f(1), ""),
}


@pytest.mark.parametrize("name", SAID)
def test_says_what_did_not_run(name, tmp_path, spec):
    text, calls, said = SAID[name]
    assert read_never_ran(follow(tmp_path / "mine.py", text, calls), spec).describe() == said


def test_cuts_a_long_list(tmp_path, spec):
    text = "def f(x):\n" + "".join(f"    if x == {n}:\n        x += 1\n" for n in range(9))
    found = read_never_ran(follow(tmp_path / "mine.py", text, lambda m: m.f(-1)), spec)
    assert found.describe(2).startswith("no golden case runs mine.py:3 (if x == 0), mine.py:5 (if x == 1) and 7 more")


CACHED = """
    class A:
        def __init__(self):
            self.k = self.table = self.weights = None
        def forward(self, x, n=0):
            if self.table is None or len(self.table) < len(x):
                self.table = [0.0] * len(x)
            self.weights = [one * 2 for one in x]
            total = sum(self.weights)
            {body}
            return total
"""

#: By name: the body of a method, and the cache that it has.
STATE = {
    "joined": ("self.k = x if self.k is None else self.k + x", ["k"]),
    "written into": ("self.k[0:1] = x; total = self.k[0]", ["k"]),
    "in place": ("self.k.copy_(x); total = self.k[0]", ["k"]),
    "made of sizes": ("self.k = self.k or [0] * len(x)", []),
    "written first": ("self.k = x; total = self.k[0]", []),
    "written in one branch": ("if n: self.k = x\n            else: total = self.k", ["k"]),
    "written in both branches": ("if n: self.k = x\n            else: self.k = x\n            total = self.k", []),
    "a place in memory": ("self.k = self.k.to(x.device)", []),
    "never read": ("self.k = x", []),
}


class Anything(list[float]):
    """Stands for an array whose operations do not matter."""

    device = "cpu"

    def __getattr__(self, name):
        return lambda *given: self


@pytest.mark.parametrize("name", STATE)
def test_finds_data_that_a_later_call_reads(name, tmp_path, spec):
    body, expected = STATE[name]

    def call(module):
        one = module.A()
        one.k = Anything([1.0]) if "self.k is None" not in body else None
        one.forward(Anything([1.0]))

    executed = follow(tmp_path / "mine.py", CACHED.format(body=body), call)
    caches = read_never_ran(executed, spec).caches
    assert [name for cache in caches.values() for name in cache.names] == expected


#: By name: the arguments of a function after x, those of the calls, the component, and the cache that is named.
ARGUMENTS: dict[str, tuple[str, list[dict[str, object]], str, str]] = {
    "no keys": ("past_kv=None", [{}], ATTENTION, "past_kv"),
    "no keys of any layer": ("past_key_values=None", [{"past_key_values": [None, None]}], ATTENTION, "past_key_values"),
    "a place": ("start_pos", [{"start_pos": 0}, {"start_pos": 0}], "decoder_only_model", "start_pos"),
    "a switch": ("use_cache=False", [{}], ATTENTION, "use_cache"),
    "keys": ("past_kv=None", [{}, {"past_kv": {1: 2}}], ATTENTION, ""),
    "places": ("start_pos", [{"start_pos": 0}, {"start_pos": 5}], ATTENTION, ""),
    "a table": ("rope_cache=None", [{}], ATTENTION, ""),
    "no attention": ("start_pos=0", [{}], "rotary_embedding", ""),
    "a session": ("past_kv=None", [{}], "cached_attention", ""),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_names_a_cache_that_no_call_used(name, tmp_path, spec):
    arguments, given, component, named = ARGUMENTS[name]
    text = f"def f(x, {arguments}):\n    return x\n"
    executed = follow(tmp_path / "mine.py", text, lambda m: [m.f([1], **one) for one in given], component)
    assert ", ".join(map(str, read_never_ran(executed, spec).caches.values())) == named


def test_an_object_that_is_called_twice_uses_its_cache(tmp_path, spec):
    text = CACHED.format(body=STATE["joined"][0])

    def call(module):
        one = module.A()
        one.forward([1.0])
        one.forward([1.0])

    assert not read_never_ran(follow(tmp_path / "mine.py", text, call), spec).caches


def test_adds_what_ran_in_another_process(tmp_path, spec):
    text, calls, _ = SAID["a branch"]
    whole = Executed()
    add_executed(whole, follow(tmp_path / "mine.py", text, calls))
    add_executed(whole, follow(tmp_path / "mine.py", text, lambda m: m.f(1, 2)))
    assert read_never_ran(whole, spec).describe() == ""


def test_follows_no_library(tmp_path):
    assert not is_own_file(pytest.__file__)
    assert not is_own_file(textwrap.__file__)
    assert not is_own_file(read_never_ran.__code__.co_filename)
    assert not is_own_file("<string>")
    assert is_own_file(str(tmp_path / "mine.py"))
    assert is_own_file("lab.ipynb, code cell 2")


ADAPTER = """
import torch
ARRAYS = "torch"

def scaled_dot_product_attention(query, key, value, mask=None):
    return attend(query, key, value, mask)

def attend(q, k, v, mask=None, past_kv=None):
    if past_kv is not None:
        k = torch.cat([past_kv[1], k], dim=-2)
        v = torch.cat([past_kv[0], v], dim=-2)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v
"""


def test_a_cache_that_was_not_judged_is_partial(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ADAPTER)
    command = ["check", str(path), "--json", str(tmp_path / "report.json")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 3, result.output
    assert "its cache was not judged" in result.stdout
    assert (
        "Never ran: no golden case runs mine.py:10–11 (if past_kv is not None); no golden case passes" in result.stdout
    )
    assert "no golden case used the cache of scaled_dot_product_attention. --allow-partial" in result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["outcome"], report["components"][0]["state"]) == ("partial", "partial")
    assert [f["label"] for f in report["findings"] if "past_kv" in f["text"]] == ["Partial", "Never ran"]
    assert CliRunner().invoke(main, [*command, "--allow-partial"]).exit_code == 0
    assert CliRunner().invoke(main, [*command, "--case", "sdpa-*"]).exit_code == 0
    card = goldformer.check(str(path))
    assert (card.conforms, card.partial) == (False, ("scaled_dot_product_attention",))
    assert "mine.py:10–11" in card._repr_html_()


def test_pytest_says_it_too_of_what_its_workers_ran(tmp_path):
    (tmp_path / "mine.py").write_text(ADAPTER)
    suite = REPOSITORY / "conformance" / "test_golden.py"
    command = [sys.executable, "-m", "pytest", str(suite), "--adapter", "mine.py", "-n", "2"]
    command += ["-k", "walkthrough or distinct"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Never ran: no golden case runs mine.py:10–11 (if past_kv is not None)" in done.stdout
