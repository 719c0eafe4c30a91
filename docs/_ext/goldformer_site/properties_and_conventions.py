"""Properties and conventions."""

from __future__ import annotations

from goldformer.spec import Spec
from goldformer_site.markdown import Words, link, links, render_term, target

_PROPERTIES = """\
(the-properties)=
# Properties

Relations that hold for every input and share nothing with the derivation of golden values; the suite draws the
inputs, always the same ones. A property that does not hold prints the smallest call that shows it, as a case in YAML.
"""

_CONVENTIONS = """\
(the-conventions)=
# Conventions

Choices that correct code makes differently. The documents' choice is the default. An adapter declares another, for all
components or for one:

```python
CONVENTIONS = {"empty_row": "zeros", "multi_head_attention.empty_row": "nan"}
```

A case that asks for another option than the one declared is skipped, and a failure that fits an option that was not
declared says so.
"""


def properties(spec: Spec) -> str:
    """Return the page of all properties, by component."""
    words = Words(spec)
    parts = [_PROPERTIES]
    for component in dict.fromkeys(prop.component for prop in spec.properties.values()):
        parts.append("## Every component\n" if component == "*" else f"## {component}\n")
        for prop in spec.properties.values():
            if prop.component == component:
                calls = f"; calls {links('component', prop.needs)} too" if prop.needs else ""
                catches = f"; catches {links('mistake', prop.catches)}" if prop.catches else ""
                shown = f"shows {links('clause', prop.clauses)}{catches}{calls}."
                term = render_term(f"`{prop.id}`", f"{words.plain(prop.title)}.", shown)
                parts.append(target("property", prop.id) + term)
    return "\n".join(parts)


def conventions(spec: Spec) -> str:
    """Return the page of all conventions, the default option first."""
    words = Words(spec)
    parts = [_CONVENTIONS]
    for convention in spec.conventions.values():
        names = sorted(convention.options, key=lambda name: name != convention.default)
        options = "".join(
            f"- `{name}`{' (default)' if name == convention.default else ''}: {words.plain(convention.options[name])}\n"
            for name in names
        )
        asking = [contract.component for contract in spec.contracts.values() if convention.id in contract.conventions]
        parts.append(
            f"{target('convention', convention.id)}## {convention.id}\n\n{words.plain(convention.title)}: "
            f"{link('clause', convention.clause)}.\n\n{options}\nOf {links('component', asking)}.\n"
        )
    return "\n".join(parts)
