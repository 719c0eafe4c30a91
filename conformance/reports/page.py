"""Pages of HTML that ask nothing of the network: one file each, in light and in dark, for keyboards too."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from goldformer.conformance.reports.text import number


def rendered(template: str, **values: Any) -> str:
    """A template of this package, filled in; what is filled in is text and never markup."""
    return _environment().get_template(template).render(**values)


def breakable(name: str) -> Markup:
    """A name that a narrow column may break behind its underscores, and nowhere else."""
    return Markup("_<wbr>").join(name.split("_"))


@cache
def _environment() -> Environment:
    """Made once: a class has thousands of pages."""
    environment = Environment(
        loader=PackageLoader("goldformer.conformance.reports"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["margin"] = number
    environment.filters["breakable"] = breakable
    return environment
