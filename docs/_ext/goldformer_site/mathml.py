"""Formulas as MathML, made when the site is built, so that a page needs neither a script nor the network."""

from __future__ import annotations

import re
from typing import Any


def visit_inline(self: Any, node: Any) -> None:
    """Return a formula within a line."""
    _write(self, mathml(node.astext(), block=False))


def visit_block(self: Any, node: Any) -> None:
    """Return a formula of its own, which scrolls if it is wider than the page."""
    formula = mathml(node.astext(), block=True)
    _write(self, f'<div class="formula" role="region" aria-label="formula" tabindex="0">{formula}</div>\n')


def mathml(tex: str, *, block: bool) -> str:
    """Return a formula of the spec in MathML; text that is no TeX raises an error of latex2mathml."""
    from latex2mathml.converter import convert  # only building the site needs it

    made: str = convert(_readable(tex), display="block" if block else "inline")
    return made


def _readable(tex: str) -> str:
    """Return the formula in the TeX that latex2mathml knows, with the spaces around the names of functions."""
    tex = re.sub(r"\\text\{[^{}]*\}", lambda match: match[0].replace(r"\_", "_"), tex)
    tex = tex.replace(r"\arg\max", r"\text{arg}\max").replace(r"\mathsf T", r"\mathsf{T}")
    tex = re.sub(r"\\operatorname\{", r"\\mathrm{", tex)
    tex = re.sub(r"(\\(?:log|ln|sin|cos))(?![a-z])(?!\s*(?:\\[bB]igl?)?\()", r"\1\\,", tex)
    return re.sub(r"(?<=[\w}])\s*(\\(?:log|ln|sin|cos))(?![a-z])", r"\\,\1", tex)


def _write(translator: Any, text: str) -> None:
    from docutils.nodes import SkipNode

    translator.body.append(text)
    raise SkipNode
