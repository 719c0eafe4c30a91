"""YAML from anybody is read as plain data or refused in a sentence: no traceback, no crash and no endless work."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec import SpecError
from goldformer.spec import yamlfile as module
from goldformer.spec.load import load_own_cases
from goldformer.spec.yamlfile import DEEPEST, LARGEST, LONGEST_NUMBER, MOST_PROBLEMS, YamlFile


@pytest.fixture(params=["libyaml", "PyYAML"])
def parser(request, monkeypatch):
    """Read with each of the two parsers; PyYAML's own is used where libyaml is missing."""
    if request.param == "PyYAML":
        source = Path(module.__file__).read_text(encoding="utf-8")
        assert 'getattr(yaml, "CSafeLoader", yaml.SafeLoader)' in source
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
        namespace: dict[str, Any] = {"__name__": module.__name__}
        exec(compile(source, module.__file__, "exec"), namespace)
        assert namespace["_Base"] is yaml.SafeLoader
        return namespace["YamlFile"]
    return YamlFile


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes, name: str = "file.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def refusal(path: Path, reader=YamlFile) -> str:
    """The one problem of a file, without the path."""
    with pytest.raises(SpecError) as raised:
        reader.read(path)
    (problem,) = raised.value.problems
    assert str(raised.value) == str(problem)
    return str(problem).removeprefix(f"{path}:")


# ── scalars that look like more than text ──

LONG = "1" * 5000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Each of these ended in a ValueError or another exception with a traceback.
        (f"a: 1\nb: {LONG}\n", "2: b: is a number of 5000 characters; write at most 1000, or put text in quotes"),
        (
            f"a:\n- {{b: [1, 2, 3,\n    {LONG}, 5]}}\n",
            "3: a[0].b[3]: is a number of 5000 characters; write at most 1000, or put text in quotes",
        ),
        (f"a: 1.{LONG}\n", "1: a: is a number of 5002 characters; write at most 1000, or put text in quotes"),
    ],
    ids=lambda text: re.sub(r"\W+", " ", text)[:30].strip(),
)
def test_a_scalar_that_python_cannot_convert_is_refused_at_its_field(write, parser, text, message):
    assert refusal(write(text), parser) == message


def test_numbers_of_any_reasonable_length_are_read(write, parser):
    text = f"a: {'1' * LONGEST_NUMBER}\nb: [1, 2, 3, {'7' * 101}]\nc: [0.{'3' * 300}, 1, 2, 3]\n"
    assert parser.read(write(text)).data == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("yes", "on", "1:30:00", "-0x1F", "0x_", "2001-13-45", "2001-02-28", "1_000", "=")),
        *(("017", 17), ("1e-5", 1e-5), ("1.0e5", 1e5), ("-.5", -0.5), ("+2.", 2.0), ("-.inf", -math.inf)),
        *(("'1'", "1"), ("true", True), ("False", False), ("~", None), ("", None)),
        (":".join("1" * 100_000), ":".join("1" * 100_000)),
    ],
    ids=lambda text: str(text)[:12],
)
def test_scalars_are_those_of_yaml_1_2(write, parser, text, value):
    """A reader of YAML 1.1 takes some of them for dates, booleans or numbers of base 8, 16 and 60, or for text."""
    (read,) = parser.read(write(f"[{text or 'null'}]\n")).data
    assert (type(read), read) == (type(value), value)


# ── tags, anchors, aliases and merge keys ──


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: !!int abc\n", "2: b: has the tag !!int; write the value without a tag, and text in quotes"),
        ("a: !!float abc\n", "1: a: has the tag !!float; write the value without a tag, and text in quotes"),
        ("a: !!bool abc\n", "1: a: has the tag !!bool; write the value without a tag, and text in quotes"),
        ("a: [!!null abc]\n", "1: a[0]: has the tag !!null; write the value without a tag, and text in quotes"),
        ("!!timestamp abc\n", "1: file: has the tag !!timestamp; write the value without a tag, and text in quotes"),
        ("!!set {a, b}\n", "1: file: has the tag !!set; write the value without a tag, and text in quotes"),
        ("a: !!str 1\n", "1: a: has the tag !!str; write the value without a tag, and text in quotes"),
        (
            "# mine\n%TAG !e! tag:example.org,2000:\n---\na: !e!b c\n",
            "2: file: has the directive %TAG; remove it, and write values without tags",
        ),
        (
            "a: 1\nb: &c 2\nd: [1, *c]\n",
            "2: d[1]: repeats this value by an alias *; write the value itself in each place, without anchor and alias",
        ),
        (
            "a: {<<: {b: 1}}\n",
            "1: a.<<: merges another mapping into this one; write the keys of that mapping here",
        ),
    ],
    ids=lambda text: re.sub(r"\W+", " ", text)[:30].strip(),
)  # fmt: skip
def test_what_is_more_than_plain_data_is_refused_at_its_line(write, parser, text, message):
    assert refusal(write(text), parser) == message


def test_the_characters_of_tags_anchors_and_merges_may_stand_in_text(write, parser):
    text = "a: b & c * d!\nb: '&a *a !a'\nc: |\n  &a *a\n  !!int a\nd: \"*\"\n'<<': 1 # &a\ne: =\nf: <<\n"
    assert parser.read(write(text)).data == {
        "a": "b & c * d!", "b": "&a *a !a", "c": "&a *a\n!!int a\n", "d": "*", "<<": 1, "e": "=", "f": "<<",
    }  # fmt: skip


# ── what crashed the process or never ended ──

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghi")
)
MERGES = "a: &a {k: 1}\n" + LAUGHS.partition("\n")[2].replace("[", "{<<: [").replace("]", "]}")
ENDLESS = {
    # The first two ended in a segmentation fault, or in many minutes.
    "lists in lists": ("[" * 100_000, "1: file: is nested deeper than 64 levels; "),
    "mappings in mappings": ("b: 1\na: " + "{a: " * 50_000, "2: file: is nested deeper than 64 levels; "),
    "mappings in lists": ("[a: " * 50_000, "1: file: is nested deeper than 64 levels; "),
    "lists in blocks": ("- " * 50_000, "1: file: is nested deeper than 64 levels; "),
    "keys of keys": ("? " * 50_000, "1: file: is nested deeper than 64 levels; "),
    "an anchor in the depth": ("[" * 100_000 + "&a", "1: file: is nested deeper than 64 levels; "),
    # The others never ended.
    "a list in itself": ("&a [*a]\n", "1: [0]: repeats this value by an alias *; "),
    "a mapping in itself": ("b: &a\n  c: *a\n", "1: b.c: repeats this value by an alias *; "),
    "billion laughs": (LAUGHS, "1: b[0]: repeats this value by an alias *; "),
    "merges of merges": (MERGES, "2: b.<<: merges another mapping into this one; "),
}
#: Ends with a status of its own where a file is refused.
READ = """
import sys
from pathlib import Path
from goldformer.spec import SpecError
from goldformer.spec.yamlfile import YamlFile

for name in sys.argv[1:]:
    try:
        YamlFile.read(Path(name))
    except SpecError as error:
        print(error)
"""


def test_depth_and_references_neither_crash_nor_hang(write):
    """In another process, which a regression would end or keep busy for ever."""
    paths = [write(text, f"{index}.yaml") for index, (text, _) in enumerate(ENDLESS.values())]
    words = [sys.executable, "-c", READ, *map(str, paths)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    for path, line, (name, (_, message)) in zip(paths, ended.stdout.splitlines(), ENDLESS.items(), strict=True):
        assert line.startswith(f"{path}:{message}"), name


@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ("{a: ", "}"), ("- ", "")], ids=["lists", "mappings", "blocks"]
)
@pytest.mark.parametrize("innermost", ["[a]", "[1, 2, 3, 4]"])
def test_the_depth_that_is_allowed_is_read(write, parser, opening, closing, innermost):
    data = parser.read(write(opening * (DEEPEST - 1) + innermost + closing * (DEEPEST - 1))).data
    depth = 1
    while data not in (["a"], [1, 2, 3, 4]):
        data, depth = data["a"] if isinstance(data, dict) else data[0], depth + 1
    assert depth == DEEPEST
    too_deep = write(opening * DEEPEST + innermost + closing * DEEPEST)
    assert refusal(too_deep, parser) == (
        "1: file: is nested deeper than 64 levels; write it with fewer lists and mappings inside each other"
    )


# ── how much is read ──


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_file_that_is_not_regular_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "file.yaml"
    if kind == "device":
        path.symlink_to("/dev/zero")  # reading it filled the memory
    else:
        os.mkfifo(path)  # nobody writes to it, so that opening it never ended
    assert refusal(path) == "1: file: cannot be read: is not a regular file"


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "file.yaml"
    with path.open("wb") as stream:
        stream.truncate(2**40)  # a file with a hole takes no space
    assert refusal(path) == f"1: file: cannot be read: has more than {LARGEST} bytes"


@pytest.mark.parametrize(
    "text", ["[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", "{a: 1, b: 2, c: 3, d: 4, e: 5}", "[" + "{}, " * 10]
)
def test_a_file_with_too_many_values_is_refused(write, monkeypatch, text):
    """Each of them takes half a kilobyte: three million took 1.4 GB."""
    monkeypatch.setattr(module, "MOST_NODES", 10)
    assert refusal(write(text)) == "1: file: has more than 10 keys and values; split it into several files"


def test_a_file_with_very_many_directives_is_refused_soon(write):
    """Libyaml compares each with all those before: 300,000 took minutes."""
    text = "".join(f"%TAG !a{i}! x\n" for i in range(300_000)) + "--- !a1!b c\n"
    assert "has the directive %TAG" in refusal(write(text))


# ── lines and lists of problems ──


# The position is in bytes, and was taken for one in characters.
def test_a_control_character_is_refused_at_its_line(write, parser):
    text = "# " + "é" * 40 + "\na: 1\nb: \x01\n" + "c: 1\n" * 40
    assert refusal(write(text), parser).startswith("3: file: is not YAML: ")


def test_a_file_with_very_many_problems_is_refused_soon(write):
    from goldformer.spec.case_schema import CasesFile

    path = write("component: softmax\ncases: []\n" + "".join(f"key_{i}: 1\n" for i in range(20_000)))
    with pytest.raises(SpecError) as raised:
        YamlFile.read(path).parse(CasesFile)
    problems = raised.value.problems
    assert len(problems) == MOST_PROBLEMS + 1
    assert str(problems[-1]) == f"{path}:1: file: has {20_001 - MOST_PROBLEMS} more problems; fix those above first"


# ── numbers in cases that are plain YAML and still no numbers to compute with ──

CASE = """\
component: {component}
cases:
  - id: mine
    title: From somebody
    clauses: [CALL-1]
    source: derived
    {fields}
    expect: {{output: all}}
"""
SCORES = "sizes: {{lead: [], n: 3}}\n    inputs: {{scores: {recipe}}}"
DRAWN = "{draw: dyadic, seed: 1, range: [-2, 2], step: 1/32}"
HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("component", "fields", "line", "message"),
    [
        # The first two never ended, the others were ValueErrors, OverflowErrors and MemoryErrors with a traceback.
        (
            "softmax",
            SCORES.format(recipe=DRAWN.replace("1/32", "'1e-999999999'")),
            8,
            "cases[0].inputs.scores.step: Value error, a step is written without an exponent, such as 1/32, "
            "got '1e-999999999'",
        ),
        (
            "encoder",
            f"attributes: {{num_layers: 1000000000}}\n    inputs: {{x: {DRAWN}}}",
            7,
            "cases[0].attributes.num_layers: mine: is 1000000000: write at most 1000",
        ),
        (
            "softmax",
            SCORES.format(recipe=DRAWN.replace("}", ", shape: [-1, 3]}")),
            8,
            "cases[0].inputs.scores: mine: has the shape [-1, 3]: write lengths of 0 or more",
        ),
        (
            "softmax",
            SCORES.format(recipe=DRAWN.replace("}", ", shape: [0, 1000000000, 1000000000, 1000000000]}")),
            8,
            "cases[0].inputs.scores: mine: has the shape [0, 1000000000, 1000000000, 1000000000]: write lengths whose "
            "product is at most 134217728",
        ),
        (
            "softmax",
            SCORES.format(recipe=f"{{fill: {HUGE}}}"),
            8,
            "cases[0].inputs.scores: mine: has a number beyond float64 or int64: write a smaller one",
        ),
        (
            "softmax",
            SCORES.format(recipe="{draw: ids, seed: 1, range: [0, 9223372036854775807]}"),
            8,
            "cases[0].inputs.scores: mine: range [0, 9223372036854775807] is too wide: write ends below 2147483648 in "
            "size",
        ),
        (
            "softmax",
            SCORES.format(recipe=DRAWN) + "\n    cotangent: {draw: dyadic, seed: 1, range: [-2, 2], step: 1/3}",
            9,
            "cases[0].cotangent: mine: step 1/3 is not a power of two such as 1/32",
        ),
    ],
    ids=["exponent", "layers", "negative length", "large shape", "large number", "wide ids", "cotangent"],
)
def test_a_case_that_cannot_be_built_is_refused_at_its_field(write, spec, component, fields, line, message):
    path = write(CASE.format(component=component, fields=fields))
    with pytest.raises(SpecError) as raised:
        load_own_cases(path, spec)
    assert str(raised.value) == f"{path}:{line}: {message}"


# ── the commands that read such files ──

COMMANDS = {
    "cases": ("file.yaml", ["check", "textbook", "--cases", "{folder}/file.yaml"]),
    "manifest": ("manifest.yaml", ["baseline", "check", "textbook", "{folder}"]),
    "assignment": ("assignment.yaml", ["assignment", "check", "{folder}/assignment.yaml"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", ["a: !!int b\n", "&a [*a]\n", "[" * 1000])
def test_a_command_ends_with_a_sentence_and_status_2(write, command, text):
    name, words = COMMANDS[command]
    path = write(text, name)
    result = CliRunner().invoke(main, [word.format(folder=path.parent) for word in words], catch_exceptions=False)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"goldformer: {path}:1: ")
    assert result.stdout == ""


SOFTMAX_CASE = """component: softmax
cases:
  - id: mine
    title: A case of a stranger
    clauses: [SM-1]
    source: derived
    sizes: {sizes}
    inputs: {inputs}
    expect: {expect}
"""
#: What a case may not be, and the end of the sentence that refuses it.
OVERSIZED = {
    "axes": ({"sizes": f"{{lead: [{'1, ' * 5000}1], n: 2}}"}, "inputs.scores: mine: has 5002 axes: write at most 32"),
    "places": (
        {"expect": "{output: {drawn: 999999999999, seed: 3}}"},
        "output.drawn: Input should be less than or equal to 100000, got 999999999999",
    ),
    "NaN": (
        {"inputs": "{scores: {values: [.nan, 0]}}"},
        "inputs.scores: mine: holds an infinity or NaN: write finite numbers",
    ),
    "infinity": (
        {"inputs": "{scores: {fill: .inf}}"},
        "inputs.scores: mine: holds an infinity or NaN: write finite numbers",
    ),
    "name": (
        {"inputs": "\n      ? " + "a" * 100_000 + "\n      : {fill: 0}"},
        "is not in the contract, which has scores",
    ),
    "overflow": (
        {"inputs": "{scores: {values: [1.7e+308, -1.7e+308]}}"},
        "mine: intermediate numbers overflow float64: write smaller ones",
    ),
    "derivation": (
        {"sizes": "{lead: [], n: 134217728}"},
        "mine has no golden values, and 134217728 numbers, more than the 1048576 that are derived: write smaller "
        "sizes, or expect only shapes",
    ),
}


@pytest.mark.parametrize("kind", OVERSIZED)
def test_a_case_that_no_machine_can_run_is_refused_in_a_sentence(kind, write):
    """Each of them ended in a traceback, went on for ever, or printed megabytes."""
    fields, sentence = OVERSIZED[kind]
    usual = {"sizes": "{lead: [], n: 2}", "inputs": "{scores: {fill: 0}}", "expect": "{output: all}"}
    path = write(SOFTMAX_CASE.format(**usual | fields))
    done = CliRunner().invoke(main, ["check", "textbook", "--cases", str(path)])
    assert (done.exit_code, done.output.rstrip()[-len(sentence) :]) == (2, sentence), done.output[-1000:]
    assert len(done.output) < 2000


def test_a_link_to_itself_is_refused_in_a_sentence(tmp_path):
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    done = CliRunner().invoke(main, ["check", "textbook", "--cases", str(loop)])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert "Too many levels of symbolic links" in done.stderr
