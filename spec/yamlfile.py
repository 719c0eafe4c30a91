"""YAML with lines: strict parsing, and the line of each field.

Scalars are those of YAML 1.2 in decimal: numbers with any form of exponent, true and false, and null; all else is text.
A file may come from anybody, so it is read as plain data. Aliases, tags and merge keys are refused, and so are files
larger than LARGEST, with more than MOST_NODES values, nested deeper than DEEPEST, and numbers longer than
LONGEST_NUMBER.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pydantic
import yaml

from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.files import read_regular_file
from goldformer.spec.strict import Location

#: libyaml's parser where PyYAML was built with it: ten times faster on files full of numbers.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: The most bytes of a file. The largest of the spec has 100,000, and a baseline of all of its cases five million.
LARGEST: Final = 16 << 20
#: The most keys and values of a file; each takes half a kilobyte of memory. A baseline of all cases has 300,000.
MOST_NODES: Final = 500_000
#: The most nested levels of lists and mappings. The spec's own files have 10.
DEEPEST: Final = 64
#: The most characters of a number. float64 needs 25, and Python prints no integer of 4301 digits.
LONGEST_NUMBER: Final = 1000
#: The most problems of one file that are reported. Each costs a search for its line.
MOST_PROBLEMS: Final = 100

#: A directive that gives tags short names. libyaml compares each with all those before.
_DIRECTIVE: Final = re.compile(r"^%TAG", re.MULTILINE)

_TAG: Final = "tag:yaml.org,2002:"
#: The tag that the loader gives to a scalar without quotes and without a tag.
_BARE: Final = "bare"
_COLLECTIONS: Final = (f"{_TAG}seq", f"{_TAG}map")

_SCALAR: Final = re.compile(
    r"(?P<null>~|null|Null|NULL|)|(?P<true>true|True|TRUE)|(?P<false>false|False|FALSE)|(?P<int>[-+]?\d+)"
    r"|(?P<float>[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))",
    re.ASCII,
)
_WORDS: Final = {"null": None, "true": True, "false": False}


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes text in quotes where it would be read as something else: PyYAML leaves 1e-5 bare."""


Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(f"{_TAG}str", text, '"' if _SCALAR.fullmatch(text) else None)
)

Model = TypeVar("Model", bound=pydantic.BaseModel)
Field = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file: plain data, and the node tree that knows the lines."""

    path: Path
    text: str
    data: Any
    node: yaml.Node

    @classmethod
    def read(cls, path: Path) -> YamlFile:
        """Parse one document; SpecError on what is not plain data in YAML, on a repeated key, and on an empty file."""
        text = ""
        try:
            text = read_regular_file(path, LARGEST).decode("utf-8")
            with contextlib.closing(_Loader(text)) as loader:
                node = loader.get_single_node()
            if node is None:
                raise _NotPlain("is empty", 1)
            return cls(path, text, _build(node, (), set()), node)
        except (OSError, UnicodeDecodeError, _NotPlain, yaml.YAMLError) as error:
            raise SpecError([Problem(path, *_describe_fault(error, text))]) from error

    def split_list(self) -> list[YamlFile]:
        """Split a list into files that know their lines in this one; return a file that is no list as it is."""
        if not isinstance(self.node, yaml.SequenceNode):
            return [self]
        items = zip(self.data, self.node.value, strict=True)
        return [YamlFile(self.path, self.text, data, node) for data, node in items]

    def line(self, where: Field) -> int:
        """Return the line, from 1, on which a field begins, or its nearest ancestor that exists."""
        key = value = self.node
        for step in where:
            if (found := _child(value, step)) is None:
                break
            key, value = found
        return _line_of(key)

    def locate(self, where: Field) -> Location:
        """Return the location of a field."""
        return Location(self.path, self.line(where))

    def problem(self, where: Field, message: str) -> Problem:
        """Return a Problem at one field of this file."""
        return Problem(self.path, self.line(where), format_field(where), message)

    def parse(self, model: type[Model]) -> Model:
        """Validate against a pydantic model; SpecError lists what does not fit, at most MOST_PROBLEMS of it."""
        try:
            return model.model_validate(self.data)
        except pydantic.ValidationError as error:
            found = [*self._join_alternatives(error.errors()).items()]
            problems = [self._explain(model, where, *one) for where, one in found[:MOST_PROBLEMS]]
            if (more := len(found) - MOST_PROBLEMS) > 0:
                problems.append(self.problem((), f"has {more} more problems; fix those above first"))
            raise SpecError(problems) from error

    def _join_alternatives(self, errors: list[Any]) -> dict[Field, tuple[Any, str]]:
        """Return by field the first error and the joined messages: pydantic reports each type that a value may have."""
        joined: dict[Field, tuple[Any, str]] = {}
        for error in errors:
            where = tuple(step for step in error["loc"] if not str(step).startswith("as:"))
            if error["type"] in ("missing", "extra_forbidden"):
                joined[where] = (error, "")
                continue
            where = self._cut_to_existing(where)
            # A list of the file is a tuple of the model.
            message = error["msg"].replace("Tuple", "List").replace("tuple", "list")
            first, before = joined.get(where, (error, ""))
            joined[where] = (first, f"{before} or {message.removeprefix('Input should be ')}" if before else message)
        return joined

    def _cut_to_existing(self, where: Field) -> Field:
        """Return a field without the steps that the file does not have, such as the name of a type."""
        value = self.node
        for index, step in enumerate(where):
            found = _child(value, step)
            if found is None:
                return where[:index]
            value = found[1]
        return where

    def _explain(self, model: type[pydantic.BaseModel], where: Field, error: Any, expected: str) -> Problem:
        got = error["input"]
        match error["type"]:
            case "extra_forbidden":
                message = _unknown_key(str(where[-1]), keys_at(model, where[:-1]))
            case "model_type" | "dict_type":
                message = f"should be a mapping of keys to values, got {_short(got)}"
            case "missing":
                message = "is missing"
            case "string_type" if got is None:
                message = "expected text, got nothing; put null or ~ in quotes if it is meant as text"
            case "string_type" if isinstance(got, bool | int | float):
                kind = "true or false" if isinstance(got, bool) else "a number"
                message = f"expected text, got {got}, which YAML reads as {kind}; put it in quotes"
            case _:
                is_quoted = "number" in expected and isinstance(got, str) and _SCALAR.fullmatch(got)
                hint = ", which is text: write it without quotes" if is_quoted else ""
                message = f"{expected}, got {_short(got)}{hint}"
        return self.problem(where, message)


def _describe_fault(error: Exception, text: str) -> tuple[int, str, str]:
    """Return the line, the field and the words of what is wrong with a file."""
    match error:
        case _NotPlain():
            return error.line, format_field(error.where), str(error)
        case UnicodeDecodeError():
            line = error.object.count(b"\n", 0, error.start) + 1
            return line, "file", f"is not YAML: not UTF-8 ({error.reason})"
        case yaml.reader.ReaderError():
            return _line_at(text, error.position), "file", f"is not YAML: {error.reason}"
        case yaml.MarkedYAMLError():
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            return line, "file", f"is not YAML: {error.problem}"
        case OSError():
            return 1, "file", f"cannot be read: {error.strerror}"
    return 1, "file", f"is not YAML: {error}"


def keys_at(model: type[pydantic.BaseModel], where: Field) -> list[str]:
    """List the keys that a model allows at a field, whichever member of a union the field may be."""
    schema = _json_schema(model)

    def kinds(part: Any) -> Iterator[dict[str, Any]]:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        yield part
        for other in (*part.get("anyOf", ()), *part.get("oneOf", ())):
            yield from kinds(other)

    def below(part: dict[str, Any], step: str | int) -> list[Any]:
        if isinstance(step, int):
            return [part.get("items")]
        others = (*part.get("patternProperties", {}).values(), part.get("additionalProperties"))
        return [part["properties"][step]] if step in part.get("properties", {}) else list(others)

    parts = list(kinds(schema))
    for step in where:
        children = [child for part in parts for child in below(part, step)]
        parts = [kind for child in children if isinstance(child, dict) for kind in kinds(child)]
    return list(dict.fromkeys(key for part in parts for key in part.get("properties", ())))


@functools.cache
def _json_schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    """Return the schema of a model, which takes a tenth of a second to make."""
    return model.model_json_schema()


def _unknown_key(word: str, known: list[str]) -> str:
    """Describe an unknown key: suggest the one that is meant, or list those that are known."""
    if word in known:
        return "does not go with the other keys that are here"
    close = difflib.get_close_matches(word, known, n=1)
    return f"unknown key: did you mean {close[0]}?" if close else f"unknown key: known here are {', '.join(known)}"


class _NotPlain(Exception):
    """A part of a file that is more than plain data, with its line and its field."""

    def __init__(self, message: str, line: int, where: Field = ()) -> None:
        super().__init__(message)
        self.line = line
        self.where = where


class _Loader(_Base):  # type: ignore[misc]
    """YAML's loader, bounded in depth and in the number of nodes. It composes nodes, and converts no scalar."""

    yaml_implicit_resolvers: Final = {None: [(_BARE, re.compile(""))]}

    def __init__(self, text: str) -> None:
        if directive := _DIRECTIVE.search(text):
            line = text.count("\n", 0, directive.start()) + 1
            raise _NotPlain("has the directive %TAG; remove it, and write values without tags", line)
        super().__init__(text)
        self.depth = 0
        self.nodes = 0

    def close(self) -> None:
        """Free what the parser holds."""
        self.dispose()

    def descend_resolver(self, parent: yaml.Node | None, index: Any) -> None:  # noqa: ARG002
        """Refuse a node that is too deep or one too many: PyYAML calls this before it composes one.

        libyaml composes by recursion and would end the process with a segmentation fault.
        """
        self.depth += 1
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise _NotPlain(f"has more than {MOST_NODES} keys and values; split it into several files", 1)
        # A scalar is not a level.
        if self.depth > DEEPEST + 1 and parent is not None:
            raise _NotPlain(
                f"is nested deeper than {DEEPEST} levels; write it with fewer lists and mappings inside each other",
                _line_of(parent),
            )

    def ascend_resolver(self) -> None:
        """Leave a node."""
        self.depth -= 1


def _build(node: yaml.Node, where: Field, seen: set[int]) -> Any:
    """Return the data of a node; _NotPlain for an alias, a tag, a key that is no word, or one that stands twice.

    Aliases let a small file stand for endless data, and tags ask for conversions that may fail in any way.
    """
    if id(node) in seen:
        message = "repeats this value by an alias *; write the value itself in each place, without anchor and alias"
        raise _NotPlain(message, _line_of(node), where)
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode) and (node.tag == _BARE or node.style):
        return _read_scalar(node, where) if node.tag == _BARE else node.value
    if node.tag not in _COLLECTIONS:
        name = _cut(node.tag.replace(_TAG, "!!"))
        message = f"has the tag {name}; write the value without a tag, and text in quotes"
        raise _NotPlain(message, _line_of(node), where)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*where, index), seen) for index, item in enumerate(node.value)]
    data: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _NotPlain("has a list or mapping as a key; write a word", _line_of(key), where)
        field = (*where, str(key.value))
        if key.value == "<<" and key.tag == _BARE:
            message = "merges another mapping into this one; write the keys of that mapping here"
            raise _NotPlain(message, _line_of(key), field)
        if key.value in data:
            first = next(_line_of(other) for other, _ in node.value if other.value == key.value)
            raise _NotPlain(f"is written twice (first on line {first})", _line_of(key), field)
        data[key.value] = _build(value, field, seen)
    return data


def _read_scalar(node: yaml.ScalarNode, where: Field) -> Any:
    """Return what a scalar without quotes stands for."""
    if (found := _SCALAR.fullmatch(node.value)) is None:
        return node.value
    kind = str(found.lastgroup)
    if kind in _WORDS:
        return _WORDS[kind]
    if (length := len(node.value)) > LONGEST_NUMBER:
        message = f"is a number of {length} characters; write at most {LONGEST_NUMBER}, or put text in quotes"
        raise _NotPlain(message, _line_of(node), where)
    return int(node.value) if kind == "int" else float(re.sub(r"\.(?=[a-z])", "", node.value.lower()))


def _line_of(item: Any) -> int:
    """Return the line, from 1, on which a node or an event begins."""
    return int(item.start_mark.line) + 1


def _line_at(source: str, position: int) -> int:
    """Return the line, from 1, of a position in a text: libyaml counts bytes, and PyYAML's own parser characters."""
    if _Base is yaml.SafeLoader:
        return source.count("\n", 0, position) + 1
    return source.encode("utf-8").count(b"\n", 0, position) + 1


def format_field(where: Field) -> str:
    """Format the path of a field as people write it: cases[3].inputs.query."""
    text = ""
    for step in where:
        key = f"[{step}]" if isinstance(step, int) else _cut(step)
        text += f".{key}" if text and isinstance(step, str) else key
    return text or "file"


def _short(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None
