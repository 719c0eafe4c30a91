"""YAML that remembers its lines: strict parsing, and where each field was written."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeVar

import pydantic
import yaml

from goldformer.spec.errors import Problem, SpecError

#: libyaml's parser where PyYAML was built with it: ten times faster on files full of numbers.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NUMBER: Final = r"-?(?:0|[1-9]\d*)(?:\.\d+(?:e[+-]\d+)?)?"
#: A list of plain numbers, in a form that means the same in YAML and in JSON.
_NUMBERS: Final = re.compile(rf"\[{_NUMBER}(?:,\s+{_NUMBER}){{3,}}\]")

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
        """Parse one document; SpecError on bad YAML, a repeated key, or a file that is empty or not there."""
        return cls._parse(path, _decode(path), fast=True)

    @classmethod
    def _parse(cls, path: Path, text: str, *, fast: bool) -> YamlFile:
        """With `fast`, lists of numbers, which are nearly all of a file of cases, are left to the JSON reader."""
        lists: list[str] = []
        try:
            loader = _Loader(_without_numbers(text, lists) if fast else text, lists)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise SpecError([Problem(path, line, "file", f"is not YAML: {error.reason}")]) from error
        try:
            node = loader.get_single_node()
            if node is None:
                raise SpecError([Problem(path, 1, "file", "is empty")])
            _refuse_bad_keys(path, node)
            data = loader.construct_document(node)
            if loader.found != len(lists):  # one of them is part of a longer text
                return cls._parse(path, text, fast=False)
            return cls(path, text, data, node)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise SpecError([Problem(path, line, "file", f"is not YAML: {error.reason}")]) from error
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise SpecError([Problem(path, line, "file", f"is not YAML: {error.problem}")]) from error
        finally:
            loader.dispose()

    def listed(self) -> list[YamlFile]:
        """The items of a list, each as a file that knows its lines in this one; a file that is no list alone."""
        if not isinstance(self.node, yaml.SequenceNode):
            return [self]
        items = zip(self.data, self.node.value, strict=True)
        return [YamlFile(self.path, self.text, data, node) for data, node in items]

    def find(self, where: Field) -> tuple[yaml.Node, yaml.Node]:
        """The key and value nodes of a field, or of its nearest ancestor that exists."""
        key = value = self.node
        for step in where:
            found = _child(value, step)
            if found is None:
                break
            key, value = found
        return key, value

    def line(self, where: Field) -> int:
        """The line on which a field begins, from 1."""
        return int(self.find(where)[0].start_mark.line) + 1

    def problem(self, where: Field, message: str) -> Problem:
        """A Problem at one field of this file."""
        return Problem(self.path, self.line(where), dotted(where), message)

    def parse(self, model: type[Model]) -> Model:
        """Validate against a pydantic model; SpecError lists everything that does not fit."""
        try:
            return model.model_validate(self.data)
        except pydantic.ValidationError as error:
            raise SpecError([self._explain(model, e) for e in error.errors()]) from error

    def _explain(self, model: type[pydantic.BaseModel], error: Any) -> Problem:
        where = tuple(step for step in error["loc"] if not str(step).startswith("as:"))
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
                message = f"{error['msg']}, got {_short(got)}"
        return self.problem(where, message)


def keys_at(model: type[pydantic.BaseModel], where: Field) -> list[str]:
    """The keys that may stand at a place in a file of a model, of whatever kind the place is there."""
    schema = model.model_json_schema()

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


def _unknown_key(word: str, known: list[str]) -> str:
    """What to say of a key that may not stand there: which one is meant, or which there are."""
    if word in known:
        return "does not go with the other keys that are here"
    close = difflib.get_close_matches(word, known, n=1)
    return f"unknown key: did you mean {close[0]}?" if close else f"unknown key: known here are {', '.join(known)}"


class _Loader(_Base):  # type: ignore[misc]
    """YAML's loader, which puts lists of numbers back in the place of the words that stand for them."""

    def __init__(self, text: str, lists: list[str]) -> None:
        super().__init__(text)
        self.lists = lists
        self.found = 0

    def text_or_numbers(self, node: yaml.ScalarNode) -> Any:
        """What a word stands for."""
        if node.style == '"' and node.value.startswith(_MARK):
            self.found += 1
            return json.loads(self.lists[int(node.value.removeprefix(_MARK))])
        return self.construct_yaml_str(node)


_MARK: Final = "numbers@"
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.text_or_numbers)


def _without_numbers(text: str, lists: list[str]) -> str:
    """The text with a quoted word for each list of numbers, as many lines long as the list was."""
    if _MARK in text:
        return text

    def word(match: re.Match[str]) -> str:
        others = match[0].split("\n")[1:]
        lists.append(match[0])
        indents = "".join("\n" + " " * (len(line) - len(line.lstrip())) for line in others)
        return f'"{_MARK}{len(lists) - 1}{indents}"'

    return _NUMBERS.sub(word, text)


def dotted(where: Field) -> str:
    """A field's path as people write it: cases[3].inputs.query."""
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "file"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


def _decode(path: Path) -> str:
    """A file's text with its line breaks as they are; SpecError when it is not there or not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError([Problem(path, 1, "file", f"cannot be read: {error.strerror}")]) from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError([Problem(path, line, "file", f"is not YAML: not UTF-8 ({error.reason})")]) from error


def _refuse_bad_keys(path: Path, node: yaml.Node) -> None:
    """Keys are words, and YAML says that they are unique; PyYAML keeps the last one silently."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in current.value:
                if not isinstance(key, yaml.ScalarNode):
                    line = key.start_mark.line + 1
                    raise SpecError(
                        [Problem(path, line, "file", "is not YAML: a key is a word, not a list or mapping")]
                    )
                if key.value in seen:
                    first, line = seen[key.value], key.start_mark.line + 1
                    raise SpecError([Problem(path, line, str(key.value), f"is written twice (first on line {first})")])
                seen[key.value] = key.start_mark.line + 1
                waiting.append(value)
        elif isinstance(current, yaml.SequenceNode):
            waiting += [item for item in current.value if not isinstance(item, yaml.ScalarNode)]
