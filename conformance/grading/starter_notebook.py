"""Make a notebook of a starter: a cell for each function and class, and a last one that checks them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from goldformer.adapters.notebook import SUFFIX, find_first_line, split_lines
from goldformer.conformance.grading.python_files import MAIN, SUBMISSION

#: A comment that begins a section of a starter, such as # ── yours ──.
_SECTION: Final = re.compile(r"^# ── (.+) ──$")

#: The last cell. The adapter imports `submission`, which is the notebook itself here.
_CHECK: Final = """import sys

import goldformer

sys.modules["{module}"] = sys.modules["__main__"]
goldformer.check("{adapter}")"""


def make_notebook(starter: str, adapter: str) -> bytes:
    """Return a notebook with the code of a starter, in whose last cell the adapter of this name is checked.

    The text at the top becomes a cell of its own, and so does each comment that begins a section.
    """
    import nbformat  # grading imports this module, and few classes have notebooks

    v4, tree = nbformat.v4, ast.parse(starter)
    cells = [v4.new_markdown_cell(_write_title(ast.get_docstring(tree)))]
    for heading, code in _list_parts(starter, tree):
        cells += [v4.new_markdown_cell(f"## {heading}")] if heading else []
        cells += [v4.new_code_cell(code)] if code else []
    cells.append(v4.new_markdown_cell("## Check\n\nRun the cells above first, and this one as often as you like."))
    cells.append(v4.new_code_cell(_CHECK.format(module=SUBMISSION, adapter=adapter)))
    for number, cell in enumerate(cells):
        # Drawn ids would make two notebooks of one starter differ.
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return f"{nbformat.writes(v4.new_notebook(cells=cells, metadata=kernel))}\n".encode()


def name_notebook(text: str) -> str:
    """Return a page for students that names the notebook where it named the file, and its last cell for the command."""
    command = re.compile(r"^( *)goldformer check (\S+)$", re.MULTILINE)
    text = command.sub(rf"\1jupyter lab {MAIN}     # run all cells: the last one checks the others", text)
    text = re.sub(r"`--component (\w+)`", r'`goldformer.check("adapter.py", "\1")`', text)
    return re.sub(r"\b(starter|submission)\.py\b", rf"\1{SUFFIX}", text)


def _write_title(text: str | None) -> str:
    """Return the text at the top of a starter with its first words as a title."""
    title, _, rest = (text or "Your code").partition(":")
    return f"# {title.strip()}\n\n{_begin(rest.strip())}".strip().replace(MAIN, f"{SUBMISSION}{SUFFIX}")


def _begin(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _list_parts(starter: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the statements of a starter, each with the heading of the section that begins with it, or "".

    What is no definition stays together, and so does a comment with what it stands above.
    """
    lines = split_lines(starter)
    nodes = tree.body if ast.get_docstring(tree) is None else tree.body[1:]
    heading, text = "", ""
    for node, following in zip(nodes, [*nodes[1:], None], strict=True):
        comments = _list_comments(lines, node)
        sections = [found[1] for comment in comments if (found := _SECTION.match(comment))]
        if sections:
            if text:
                yield heading, text
            heading, text = _begin(sections[-1]), ""
        kept = [comment for comment in comments if not _SECTION.match(comment)]
        source = "\n".join([*kept, *lines[find_first_line(node) - 1 : node.end_lineno]])
        text = f"{text}\n{source}" if text else source
        if _is_definition(node) or following is None or _is_definition(following):
            yield heading, text
            heading, text = "", ""


def _list_comments(lines: Sequence[str], node: ast.stmt) -> list[str]:
    """Return the comments above a statement, without empty lines."""
    above = takewhile(lambda line: not line or line.startswith("#"), reversed(lines[: find_first_line(node) - 1]))
    return [line for line in reversed(list(above)) if line]


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
