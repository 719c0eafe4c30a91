"""The Transformer on one page: the reference's file, with the paper's equations and the clauses that judge it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goldformer.spec import ROOT, Spec
from goldformer_site.markdown import links

#: The file that the page shows.
FILE: Final[Path] = ROOT.parent / "reference_impl" / "transformer.py"

#: The equations of the paper, by the function or class that computes them.
EQUATIONS: Final[Mapping[str, str]] = {
    "softmax": r"\mathrm{softmax}(s)_j = \frac{\exp(s_j)}{\sum_k \exp(s_k)}",
    "scaled_scores": r"\frac{Q K^{\mathsf T}}{\sqrt{d_k}}",
    "scaled_dot_product_attention": (
        r"\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^{\mathsf T}}{\sqrt{d_k}}\right) V"
    ),
    "sinusoid_table": (
        r"PE_{(pos, 2i)} = \sin(pos / 10000^{2i / d_{model}}) \quad"
        r" PE_{(pos, 2i + 1)} = \cos(pos / 10000^{2i / d_{model}})"
    ),
    "MultiHeadAttention": (
        r"\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(head_1, \ldots, head_h) W^O \quad"
        r" head_i = \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)"
    ),
    "FeedForward": r"\mathrm{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2",
    "LayerNorm": r"\mathrm{LayerNorm}(x) = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \cdot \gamma + \beta",
    "ResidualLayer": r"\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))",
}

_CLAUSE: Final = re.compile(r"\b[A-Z]+-\d+\b")

_HEAD: Final = """\
---
hide-toc: true
---

(the-transformer-on-one-page)=
# The Transformer on one page

This page shows all of `reference_impl/transformer.py`, in the order of the data: functions, modules, layers, stacks,
the model. Above each code block is the equation that it computes, and below it are links to the clauses of its lines.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A function or a class of the file: its name, its lines and the number of the first one."""

    name: str
    lines: tuple[str, ...]
    first: int


def list_parts(source: str) -> Iterator[Part]:
    """Return the functions and classes of a file, in its order."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield Part(node.name, tuple(lines[first - 1 : node.end_lineno]), first)


def page(spec: Spec) -> str:
    """Return the page."""
    source = FILE.read_text(encoding="utf-8")
    parts = list(list_parts(source))
    head = Part("", tuple(source.splitlines()[: parts[0].first - 1]), 1)
    return "\n".join([_HEAD, _show_code(head, spec), *(_show_part(part, spec) for part in parts)])


def _show_part(part: Part, spec: Spec) -> str:
    equation = f"$$\n{EQUATIONS[part.name]}\n$$\n\n" if part.name in EQUATIONS else ""
    return f"## `{part.name}`\n\n{equation}{_show_code(part, spec)}"


def _show_code(part: Part, spec: Spec) -> str:
    """Return lines of the file, and below them links to the clauses that they name."""
    code = "\n".join(part.lines).strip("\n")
    judged = []
    for number, line in enumerate(part.lines, part.first):
        if named := [id_ for id_ in _CLAUSE.findall(line) if id_ in spec.clauses]:
            judged.append(f"line {number}: {links('clause', dict.fromkeys(named))}")
    clauses = f"\n{' · '.join(judged)}\n" if judged else ""
    return f"```{{code-block}} python\n:lineno-start: {part.first}\n\n{code}\n```\n{clauses}"
