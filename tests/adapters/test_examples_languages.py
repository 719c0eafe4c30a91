"""The examples in Java, JavaScript and C: built as their page says, they conform, refuse, and outlive bad messages."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from goldformer.adapters import Adapter, find_adapter
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.spec import Case, Spec
from repository import REPOSITORY

EXAMPLES = REPOSITORY / "adapters" / "examples"
PAGE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"

SOFTMAX = '{"jsonrpc":"2.0","id":7,"method":"softmax","params":{"scores":%s}}'
ARRAY = '{"dtype":"float64","shape":[2,2],"data":[0.5,0.25,-1.0,"Infinity"]}'
PROPER = SOFTMAX % '{"dtype":"float64","shape":[1,2],"data":[0.5,0.5]}'

#: Messages that are none of the protocol's, and the code of the answer to each.
BAD = [
    ("", -32700),
    ("softmax", -32700),
    ("\0", -32700),
    (PROPER.replace("[0.5", "[\0 0.5"), -32700),
    ("[" * 100_000, -32700),
    ("[1, 2", -32700),
    ('{"jsonrpc":"2.0",}', -32700),
    (PROPER + "}", -32700),
    (PROPER.replace("softmax", "soft\tmax"), -32700),
    (SOFTMAX % '{"dtype":"float64","shape":[1],"data":[NaN]}', -32700),
    (SOFTMAX % '{"dtype":"float64","shape":[1],"data":[01]}', -32700),
    (SOFTMAX % '{"dtype":"float64","shape":[1],"data":[1.]}', -32700),
    (SOFTMAX % '"\\u12"', -32700),
    (SOFTMAX % '"\\', -32700),
    ("[]", -32600),
    ("{}", -32600),
    ("7", -32600),
    (PROPER.replace('"id":7', '"id":-7'), -32600),
    (PROPER.replace('"id":7', '"id":7.5'), -32600),
    (PROPER.replace('"2.0"', '"1.0"'), -32600),
    (PROPER.replace('"softmax"', "null"), -32600),
    (PROPER.replace("softmax", "soft_max"), -32601),
    (PROPER.replace("softmax", "constructor"), -32601),
    (SOFTMAX % "null", -32602),
    (SOFTMAX % "[0.5, 0.5]", -32602),
    (SOFTMAX % "{}", -32602),
    (SOFTMAX % ARRAY.replace("float64", "float16"), -32602),
    (SOFTMAX % ARRAY.replace("[2,2]", "[2,3]"), -32602),
    (SOFTMAX % ARRAY.replace("[2,2]", "[2,-2]"), -32602),
    (SOFTMAX % ARRAY.replace("[2,2]", "[2,2.5]"), -32602),
    (SOFTMAX % ARRAY.replace("[2,2]", '[2,"2"]'), -32602),
    (SOFTMAX % ARRAY.replace("[2,2]", "[16777216,16777216,16777216,16777216]"), -32602),
    (SOFTMAX % ARRAY.replace("[2,2]", "[1,1,1,1,1,1,1,2,2]"), -32602),
    (SOFTMAX % ARRAY.replace("0.25", "null"), -32602),
    (SOFTMAX % ARRAY.replace("0.25", "true"), -32602),
    (SOFTMAX % ARRAY.replace("0.25", '"infinite"'), -32602),
    (SOFTMAX % ARRAY.replace("0.25", "[0.25]"), -32602),
    (SOFTMAX % ARRAY.replace("0.25", '["NaN"]'), -32602),
    (SOFTMAX % ARRAY.replace("0.25", "1e999"), -32602),
    (SOFTMAX % ARRAY.replace("0.25", "1e39").replace("float64", "float32"), -32602),
    (SOFTMAX % '{"dtype":"float64","shape":[1],"data":"AAAAAAAA8D8="}', -32602),
    (PROPER.replace('"scores"', '"score"'), -32602),
    (PROPER.replace("}}}", '},"axis":1}}'), -32602),
    ('{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocol":2}}', -32602),
]


@dataclass(frozen=True)
class Language:
    """One section of the page: what it needs and implements."""

    heading: str
    tool: str
    version: str
    at_least: int
    components: frozenset[str]
    gradients: frozenset[str]


LANGUAGES = {
    "java": Language(
        "## Java", "javac", "javac -version", 17,
        frozenset({
            "softmax", "scaled_dot_product_attention", "single_head_attention", "single_head_attention_step",
            "multi_head_attention",
        }),
        frozenset({"scaled_dot_product_attention", "single_head_attention"}),
    ),
    "javascript": Language(
        "## JavaScript", "node", "node --version", 18,
        frozenset({
            "softmax", "scaled_dot_product_attention", "positional_encoding", "multi_head_attention", "layer_norm",
            "feed_forward", "encoder_layer", "cached_attention",
        }),
        frozenset(),
    ),
    "c": Language(
        "## C", "gcc", "gcc -dumpversion", 5,
        frozenset({"softmax", "scaled_dot_product_attention", "positional_encoding"}),
        frozenset(),
    ),
}  # fmt: skip


def commands(language: Language) -> tuple[str, str]:
    """The two commands of its section: what builds it, and what starts it."""
    section = PAGE[PAGE.index(language.heading) :]
    (block,) = re.findall(r"```console\n(.*?)```", section[: section.index("\n## ")], flags=re.DOTALL)
    build, check = (line.removeprefix("$ ") for line in block.splitlines())
    (started,) = re.findall(r"^goldformer check 'cmd: (.*)'$", check)
    return build, started


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> Language:
    found = LANGUAGES[request.param]
    if shutil.which(found.tool) is None:
        pytest.skip(f"there is no {found.tool} on this machine")
    told = subprocess.run(shlex.split(found.version), capture_output=True, text=True, check=True)
    number = int(re.search(r"\d+", told.stdout + told.stderr)[0])
    if number < found.at_least:
        pytest.skip(f"{found.tool} is version {number} on this machine, the example needs {found.at_least}")
    return found


@pytest.fixture(scope="module")
def command(language: Language, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The words that start the example, once it is built in a folder of its own."""
    folder = tmp_path_factory.mktemp("examples")
    build, started = (line.replace("build/examples", shlex.quote(str(folder))) for line in commands(language))
    if language.tool == "gcc" and sanitizes(folder):
        build += f" -g {SANITIZERS}"
    subprocess.run(build, shell=True, cwd=REPOSITORY, check=True)
    return started.replace("adapters/examples", shlex.quote(str(EXAMPLES)))


def sanitizes(folder: Path) -> bool:
    """Return True if this machine can build and run a program under the sanitizers."""
    program = folder / "empty"
    built = subprocess.run(
        ["gcc", "-x", "c", "-", "-o", str(program), *SANITIZERS.split()],
        input="int main(void) { return 0; }", capture_output=True, text=True, check=False,
    )  # fmt: skip
    return built.returncode == 0 and subprocess.run([str(program)], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def example(command: str, spec: Spec) -> Iterator[Adapter]:
    adapter = find_adapter(f"cmd: {command}", spec)
    with contextlib.closing(adapter):
        yield adapter


def replies(command: str, lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the answers of a fresh process, which must end by itself with status 0."""
    requests = b"\n".join([*lines, b""])
    done = subprocess.run(shlex.split(command), input=requests, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return [json.loads(line) for line in done.stdout.splitlines()]


def small(case: Case) -> bool:
    """Return False for the few cases whose arrays take longer to write and read than all others together."""
    arrays = [*case.input_arrays.values(), *case.param_arrays.values()]
    return sum(array.size for array in arrays) < 100_000


def excused(case: Case, language: Language) -> bool:
    """Return True if a case asks for something that the example declares as missing."""
    gradient = case.cotangent_array is not None and case.component not in language.gradients
    return gradient or "dropout_rate" in case.attributes


def test_it_names_what_it_implements(example, language):
    assert set(example.functions) == language.components
    assert set(example.gradients) == language.gradients


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_it_conforms_on_what_it_implements(example, language, spec, dtype):
    cases = [case for case in plan(spec, language.components) if small(case)]
    bench = Bench(spec, example, dtype, "cpu", Policy(require_refusals=True, require_precision=True))
    verdicts = {case.id: check_case(case, bench) for case in cases}
    assert {v.check: v.message for v in verdicts.values() if v.bad} == {}
    absent = {case.id for case in cases if verdicts[case.id].reason == "not-implemented"}
    assert absent <= {case.id for case in cases if excused(case, language)}
    passed = [v for v in verdicts.values() if v.status is Status.PASSED]
    assert {v.component for v in passed} == language.components
    gradients = {case.component for case in cases if case.cotangent_array is not None and verdicts[case.id] in passed}
    assert gradients == language.gradients


def test_it_refuses_by_the_name_of_the_argument(example, language, spec):
    cases = [c for c in plan(spec, language.components) if c.error is not None and not excused(c, language)]
    assert cases
    for case in cases:
        _, problem = Bench(spec, example, "float64", "cpu").call_unchecked(case)
        assert "(code -32602)" in str(problem), (case.id, problem)
        assert re.search(rf"(?<![\w.]){re.escape(case.error)}\b", str(problem)), (case.id, problem)


def test_each_bad_message_is_answered_with_its_code(command):
    *answers, last = replies(command, [*(line.encode() for line, _ in BAD), PROPER.encode()])
    got = [(line[:200], answer["error"]["code"]) for (line, _), answer in zip(BAD, answers, strict=True)]
    assert got == [(line[:200], code) for line, code in BAD]
    assert {answer["id"] for answer in answers if answer["error"]["code"] == -32700} == {None}
    assert {answer["id"] for answer in answers if answer["error"]["code"] in (-32601, -32602)} == {7}
    assert last["result"]["output"]["data"] == [0.5, 0.5]


def test_whatever_a_line_holds_it_is_answered_once(command):
    chance = random.Random(1)
    lines = [b"\xff\xfe" + PROPER.encode(), b'{"id":"\xed\xa0\x80"}', b"[" * 5000 + b"]" * 5000]
    for _ in range(500):
        line = bytearray(chance.choice([PROPER, SOFTMAX % ARRAY]).encode())
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(line))
            piece = chance.choice(
                [b"", b"", b'"', b"{", b"]", b"\\", b"\\u", b"-", b"1e9", b",", bytes([chance.choice(range(11, 256))])]
            )
            line[start : start + chance.choice([0, 1, 1, 9])] = piece
        lines.append(bytes(line[: chance.choice([len(line), len(line), chance.randrange(len(line))])]))
    *answers, last = replies(command, [*lines, PROPER.encode()])
    assert len(answers) == len(lines)
    assert all(("result" in answer) != ("error" in answer) for answer in answers)
    assert last["result"]["output"]["data"] == [0.5, 0.5]


def test_what_is_not_finite_goes_there_and_back(command):
    array = '{"dtype":"float64","shape":[3,2],"data":[0,"-Infinity",1.5,"NaN",-1e308,1e308]}'
    (answer,) = replies(command, [(SOFTMAX % array).encode()])
    data = [float(x) for x in answer["result"]["output"]["data"]]
    assert data[:2] == [1, 0]
    assert all(math.isnan(x) for x in data[2:4])
    assert "NaN" in answer["result"]["output"]["data"]
    assert data[4:] == [0, 1]


def test_it_ends_when_it_is_asked_to(command):
    shutdown = '{"jsonrpc":"2.0","id":8,"method":"shutdown"}'
    answers = replies(command, [shutdown.encode(), PROPER.encode()])
    assert answers == [{"jsonrpc": "2.0", "id": 8, "result": None}]


def test_make_builds_them_as_the_page_says():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for name in ("java", "c"):
        assert commands(LANGUAGES[name])[0] in makefile
