"""YAML with lines: strict parsing, and the line of each field.

A file may come from anybody, so it is read as plain data: lists, mappings and scalars. Anchors, aliases, tags and merge
keys are refused, and so are files larger than LARGEST, with more than MOST_NODES values, nested deeper than DEEPEST,
and numbers longer than LONGEST_NUMBER.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
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
#: The most characters of a number or a date. float64 needs 25, and Python prints no integer of 4301 digits.
LONGEST_NUMBER: Final = 1000
#: The most problems of one file that are reported. Each costs a search for its line.
MOST_PROBLEMS: Final = 100

#: A possible anchor, alias or tag: it stands at the start of the text, after a space or after a token.
_MAY_REFER: Final = re.compile(r"""[&*!](?<![^\s\ufeff\[\]{},:?"'-].)(?:\S|(?<=!))""")

#: A directive that gives tags short names. libyaml compares each with all those before.
_DIRECTIVE: Final = re.compile(r"^%TAG", re.MULTILINE)

_TAG: Final = "tag:yaml.org,2002:"

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
        text = _decode(path, _read_bytes(path))
        with _translate_faults(path, text) as composed, contextlib.closing(_Loader(text)) as loader:
            _refuse_references(text)
            node = composed.node = loader.get_single_node()
            if node is None:
                raise SpecError([Problem(path, 1, "file", "is empty")])
            _refuse_bad_keys(path, node)
            return cls(path, text, loader.construct_document(node), node)

    def split_list(self) -> list[YamlFile]:
        """Split a list into files that know their lines in this one; return a file that is no list as it is."""
        if not isinstance(self.node, yaml.SequenceNode):
            return [self]
        items = zip(self.data, self.node.value, strict=True)
        return [YamlFile(self.path, self.text, data, node) for data, node in items]

    def find(self, where: Field) -> tuple[yaml.Node, yaml.Node]:
        """Return the key and value nodes of a field, or of its nearest ancestor that exists."""
        key = value = self.node
        for step in where:
            found = _child(value, step)
            if found is None:
                break
            key, value = found
        return key, value

    def line(self, where: Field) -> int:
        """Return the line on which a field begins, from 1."""
        return int(self.find(where)[0].start_mark.line) + 1

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
            found = self._join_alternatives(error.errors())
            problems = [self._explain(model, *one) for one in found[:MOST_PROBLEMS]]
            if (more := len(found) - MOST_PROBLEMS) > 0:
                problems.append(self.problem((), f"has {more} more problems; fix those above first"))
            raise SpecError(problems) from error

    def _join_alternatives(self, errors: list[Any]) -> list[tuple[Field, Any, str]]:
        """Return field, first error and joined messages: pydantic reports each type that a value may have by itself."""
        joined: dict[Field, tuple[Field, Any, str]] = {}
        for error in errors:
            where = tuple(step for step in error["loc"] if not str(step).startswith("as:"))
            if error["type"] in ("missing", "extra_forbidden"):
                joined[where] = (where, error, error["msg"])
                continue
            where = self._cut_to_existing(where)
            # A list of the file is a tuple of the model.
            message = error["msg"].replace("Tuple", "List").replace("tuple", "list")
            _, first, before = joined.get(where, (where, error, ""))
            joined[where] = (
                where,
                first,
                f"{before} or {message.removeprefix('Input should be ')}" if before else message,
            )
        return list(joined.values())

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
            case "string_type" if isinstance(got, bool | int | float | date):
                kind = "true or false" if isinstance(got, bool) else "a date" if isinstance(got, date) else "a number"
                message = f"expected text, got {got}, which YAML reads as {kind}; put it in quotes"
            case _:
                hint = advise_number(got) if "number" in expected and isinstance(got, str) else ""
                message = f"{expected}, got {_short(got)}{hint}"
        return self.problem(where, message)


#: A decimal number as people write it: sign, whole part, digits after the point, and sign and digits of the exponent.
_DECIMAL: Final = re.compile(r"([-+]?)(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([-+]?)(\d+))?", re.ASCII)


def advise_number(text: str) -> str:
    """Return what to write where YAML 1.1 reads a number as text, to be put after a message; "" if it is none.

    An exponent needs a point and a sign: 1e-6 and 1.0e6 are text, and 1.0e-6 is a number.
    """
    if (found := _DECIMAL.fullmatch(text)) is None:
        return ""
    sign, whole, digits, of_exponent, exponent = found.groups()
    number = f"{sign}{whole or 0}.{digits or 0}" + (f"e{of_exponent or '+'}{exponent}" if exponent else "")
    return f", which YAML reads as text: write {_cut(number)}" + " without quotes" * (number == text)


@dataclass(slots=True)
class _Composed:
    """The nodes of a file, once they are composed: they show the field of a fault."""

    node: yaml.Node | None = None


@contextlib.contextmanager
def _translate_faults(path: Path, text: str) -> Iterator[_Composed]:
    """Raise SpecError with a line and a field for whatever is wrong with a file."""
    composed = _Composed()
    try:
        yield composed
    except _NotPlain as error:
        where = format_field(_path_to(composed.node, error.node))
        raise SpecError([Problem(path, error.line, where, str(error))]) from error
    except yaml.reader.ReaderError as error:
        line = _line_at(text, error.position)
        raise SpecError([Problem(path, line, "file", f"is not YAML: {error.reason}")]) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError([Problem(path, line, "file", f"is not YAML: {error.problem}")]) from error


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
    """A part of a file that is more than plain data, with its line, and with its node where one was made."""

    def __init__(self, message: str, line: int, node: yaml.Node | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.node = node


class _Loader(_Base):  # type: ignore[misc]
    """YAML's loader, bounded in depth and in the number of nodes."""

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


#: A number of base 2, 8, 16 or 60: YAML 1.1 takes 017 for 15, and 1:30 for 90.
_OTHER_BASE: Final = re.compile(r"^[-+]?0[0-9_xb]|:")


def _limit_length(kind: str, construct: Callable[[Any, yaml.ScalarNode], Any]) -> Callable[[Any, yaml.ScalarNode], Any]:
    """Wrap a constructor of PyYAML, which raises whatever Python raises for a scalar that only looks like `kind`."""

    def construct_bounded(loader: Any, node: yaml.ScalarNode) -> Any:
        if (length := len(node.value)) > LONGEST_NUMBER:
            message = f"is {kind} of {length} characters; write at most {LONGEST_NUMBER}, or put text in quotes"
            raise _NotPlain(message, _line_of(node), node)
        try:
            value = construct(loader, node)
        except (ValueError, OverflowError) as error:
            message = (
                f"is {_short(node.value)}, which looks like {kind} but is not one; correct it, or put text in quotes"
            )
            raise _NotPlain(message, _line_of(node), node) from error
        if isinstance(value, int | float) and _OTHER_BASE.search(node.value):
            message = (
                f"is {_short(node.value)}, which YAML reads as {value}; write it in decimal, or put text in quotes"
            )
            raise _NotPlain(message, _line_of(node), node)
        return value

    return construct_bounded


# YAML 1.1 has a tag of its own for each of these two words, which are text here.
for _word in ("value", "merge"):
    _Loader.add_constructor(f"{_TAG}{_word}", _Base.construct_yaml_str)
_Loader.add_constructor(f"{_TAG}int", _limit_length("an integer", _Base.construct_yaml_int))
_Loader.add_constructor(f"{_TAG}float", _limit_length("a number", _Base.construct_yaml_float))
_Loader.add_constructor(f"{_TAG}timestamp", _limit_length("a date", _Base.construct_yaml_timestamp))


def _refuse_references(source: str) -> None:
    """Refuse anchors, aliases and tags.

    Aliases let a small file stand for endless data, and tags ask for conversions that may fail in any way. Neither can
    be seen any more in composed nodes, so the events of the parser are searched; the few files that may have them are.
    """
    if not _MAY_REFER.search(source):
        return
    depth = nodes = 0
    for event in yaml.parse(source, Loader=_Base):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if not isinstance(event, yaml.NodeEvent):
            continue
        nodes += 1
        if depth > DEEPEST or nodes > MOST_NODES:
            return  # the loader refuses the file; libyaml's time grows with the square of the depth
        if event.anchor is not None:
            what = "alias *" if isinstance(event, yaml.AliasEvent) else "anchor &"
            raise _NotPlain(
                f"has the {what}{_cut(event.anchor)}; write the value itself in each place, without anchor and alias",
                _line_of(event),
            )
        if (tag := getattr(event, "tag", None)) is not None:
            name = _cut(tag.replace(_TAG, "!!"))
            raise _NotPlain(f"has the tag {name}; write the value without a tag, and text in quotes", _line_of(event))


def _line_of(item: Any) -> int:
    """Return the line, from 1, on which a node or an event begins."""
    return int(item.start_mark.line) + 1


def _line_at(source: str, position: int) -> int:
    """Return the line, from 1, of a position in a text: libyaml counts bytes, and PyYAML's own parser characters."""
    if _Base is yaml.SafeLoader:
        return source.count("\n", 0, position) + 1
    return source.encode("utf-8").count(b"\n", 0, position) + 1


def _path_to(root: yaml.Node | None, wanted: yaml.Node | None) -> Field:
    """Return the field of a node, or of the file if the node was not composed."""
    if root is None or wanted is None:
        return ()
    waiting: list[tuple[Field, yaml.Node]] = [((), root)]
    while waiting:
        where, node = waiting.pop()
        if node is wanted:
            return where
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key is wanted:
                    return (*where, str(key.value))
                waiting.append(((*where, str(key.value)), value))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [((*where, index), item) for index, item in enumerate(node.value)]
    return ()


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


def _read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; SpecError if it cannot be read, is no regular file, or is too large."""
    try:
        return read_regular_file(path, LARGEST)
    except OSError as error:
        raise SpecError([Problem(path, 1, "file", f"cannot be read: {error.strerror}")]) from error


def _decode(path: Path, raw: bytes) -> str:
    """Return a file's text with its line breaks as they are; SpecError if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError([Problem(path, line, "file", f"is not YAML: not UTF-8 ({error.reason})")]) from error


def _refuse_bad_keys(path: Path, node: yaml.Node) -> None:
    """Refuse keys that are no words or stand twice: PyYAML silently keeps the last one."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in current.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise SpecError(
                        [Problem(path, line, "file", "is not YAML: a key is a word, not a list or mapping")]
                    )
                if key.tag == f"{_TAG}merge":
                    message = "merges another mapping into this one; write the keys of that mapping here"
                    raise SpecError([Problem(path, line, "<<", message)])
                if key.value in seen:
                    first = seen[key.value]
                    raise SpecError([Problem(path, line, str(key.value), f"is written twice (first on line {first})")])
                seen[key.value] = line
                waiting.append(value)
        elif isinstance(current, yaml.SequenceNode):
            waiting += [item for item in current.value if not isinstance(item, yaml.ScalarNode)]
