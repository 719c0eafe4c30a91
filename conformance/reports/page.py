"""HTML pages that load nothing from the network: one file each, in light and dark, usable with a keyboard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from goldformer.conformance.reports.text import format_ratio

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table: its text, lines below it, the id that it links to, its CSS classes, and its tooltip."""

    text: str
    notes: tuple[str, ...] = ()
    target: str = ""
    kind: str = "none"
    tooltip: str = ""


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; values are text and never markup."""
    return _make_environment().get_template(template).render(**values)


def make_breakable(name: str) -> Markup:
    """Return a name that a narrow column may break after its underscores only."""
    from markupsafe import Markup

    return Markup("_<wbr>").join(name.split("_"))


@cache
def _make_environment() -> Environment:
    """Make the environment once: a class has thousands of pages, and most commands need no Jinja2."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("goldformer.conformance.reports"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["margin"] = format_ratio
    environment.filters["breakable"] = make_breakable
    return environment
