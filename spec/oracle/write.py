"""Writes golden values into case files, leaving every other byte as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from goldformer.spec.files import replace_file
from goldformer.spec.model import ANY
from goldformer.spec.oracle.derive import Derived, DerivedArray
from goldformer.spec.yamlfile import YamlFile

_WIDTH = 108


def write_golden(
    file: YamlFile, derived: Mapping[str, tuple[str, Derived]], wanted: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Put each derivation (by case id, with its digest) at the end of its case; False when nothing changed.

    `wanted` gives the probes of each case's outputs. The file is replaced as a whole or not at all.
    """
    lines = file.text.splitlines()
    ending = "\r\n" if "\r\n" in file.text else "\n"
    cases = [node for node in file.find(("cases",))[1].value if isinstance(node, yaml.MappingNode)]
    # From the last case to the first, so that the lines of those before stay where they are.
    for node in reversed(cases):
        keys = {key.value: (key, value) for key, value in node.value}
        id_ = keys["id"][1].value
        if id_ not in derived:
            continue
        digest, result = derived[id_]
        if node.flow_style:
            where = f"{file.path}:{node.start_mark.line + 1}"
            raise ValueError(f"{where}: {id_} is written in braces, which hold no golden values: write one key a line")
        indent = " " * node.start_mark.column
        block = [indent + line for line in _golden(digest, result, wanted[id_])]
        if "golden" in keys:
            start = keys["golden"][0].start_mark.line
            lines[start : _end(lines, keys["golden"][1])] = block
        else:
            end = _end(lines, node.value[-1][1])
            lines[end:end] = block
    text = ending.join(lines) + ending
    if text == file.text:
        return False
    replace_file(file.path, text)
    return True


def _end(lines: list[str], value: yaml.Node) -> int:
    """The line after a value: after its last leaf, since a block's own end lies past the comments behind it."""
    while isinstance(value, yaml.CollectionNode) and not value.flow_style and value.value:
        last = value.value[-1]
        value = last[1] if isinstance(value, yaml.MappingNode) else last
    if not (isinstance(value, yaml.ScalarNode) and value.style in ("|", ">")):
        return int(value.end_mark.line) + 1
    # Literal and folded words end where the next token begins: go back to the last line that is theirs.
    first = int(value.start_mark.line) + 1
    end = min(int(value.end_mark.line) + (value.end_mark.column > 0), len(lines))
    while end > first and _indent(lines[end - 1]) < _indent(lines[first]):
        end -= 1
    return end


def _indent(line: str) -> int:
    """How far a line is indented; a blank one not at all."""
    return len(line) - len(line.lstrip()) if line.strip() else -1


def _golden(digest: str, derived: Derived, wanted: Mapping[str, Any]) -> Iterator[str]:
    yield "golden:"
    yield f"  derivation: {digest!r}"
    yield f"  peak: {number(repr(derived.peak))}"
    if derived.margin is not None:
        yield f"  margin: {number(repr(derived.margin))}"
    if set(derived.options) == {ANY}:
        outputs = derived.options[ANY]
        assert outputs is not None, "only an option of a convention can refuse a call"
        yield "  outputs:"
        yield from _outputs(outputs, wanted, "    ")
        return
    yield "  options:"
    for option, outputs in derived.options.items():
        if outputs is None:
            yield f"    {option}: refused"
            continue
        yield f"    {option}:"
        yield from _outputs(outputs, wanted, "      ")


def _outputs(outputs: Mapping[str, DerivedArray], wanted: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, array in outputs.items():
        yield f"{indent}{name}:"
        yield f"{indent}  error_scale: {number(repr(array.error_scale))}"
        if wanted[name].drawn:
            places = ["[" + ", ".join(map(str, place)) + "]" for place in wanted[name].indices]
            yield from _flow(f"{indent}  at: [", places)
        values = [number(v) for v in array.values]
        if array.within is not None:
            yield f"{indent}  statistics:"
            for (statistic, within), value in zip(array.within.items(), values, strict=True):
                yield f"{indent}    {statistic}: {{value: {value}, within: {number(repr(within))}}}"
        elif not array.shape:
            yield f"{indent}  values: {values[0]}"
        elif len(array.shape) == 1:
            yield from _flow(f"{indent}  values: [", values)
        else:
            yield f"{indent}  values:"
            yield from _rows(values, array.shape, f"{indent}    ")


def _rows(values: list[str], shape: tuple[int, ...], indent: str) -> Iterator[str]:
    """Block sequences down to the last axis, which is written in one flow: one matrix row, one line."""
    width = shape[-1]
    for row in range(len(values) // width):
        opened, count = 0, row
        for size in reversed(shape[1:-1]):
            if count % size:
                break
            count //= size
            opened += 1
        depth = len(shape) - 2 - opened
        yield from _flow(indent + "  " * depth + "- " * (opened + 1) + "[", values[row * width : (row + 1) * width])


def _flow(head: str, items: list[str]) -> Iterator[str]:
    line, hang = head, " " * (len(head) - len(head.lstrip())) + "  "
    for index, item in enumerate(items):
        piece = item + ("]" if index == len(items) - 1 else ", ")
        if len(line) + len(piece) > _WIDTH and index:
            yield line.rstrip()
            line = hang + "  "
        line += piece
    yield line


def number(text: str) -> str:
    """A decimal as YAML 1.1 reads a number: no trailing zeros, a point before an exponent, .nan."""
    if text in ("nan", "true", "false"):
        return ".nan" if text == "nan" else text
    mantissa, exponent, power = text.partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    if not exponent:
        return mantissa
    sign = "" if power[0] in "+-" else "+"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{power}"
