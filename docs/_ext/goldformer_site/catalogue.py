"""The mistakes that people really make, by component."""

from __future__ import annotations

from collections.abc import Mapping

from goldformer.spec import Spec
from goldformer.spec.tables import Mistake, find_address
from goldformer_site.markdown import Words, fields, link, target

_HEAD = """\
(known-mistakes)=
# Known mistakes

Mistakes that people really make, {number} of them. Each is made on purpose by replacing a step of the textbook,
and caught by the cases and properties that list it; `goldformer mistakes --matrix` proves that. A failure
that equals one of them says so. What a [convention](#the-conventions) allows is no mistake.

<div class="filter" data-of="mistakes" data-such="mask padding"></div>
"""


def pages(spec: Spec) -> Mapping[str, str]:
    """Return the list of all mistakes by component, and a page for each, whose address stays."""
    words = Words(spec)
    parts = [_HEAD.format(number=len(spec.mistakes))]
    for component in dict.fromkeys(mistake.component for mistake in spec.mistakes.values()):
        parts.append(f"## {component}\n")
        parts += [_entry(m, words) for m in spec.mistakes.values() if m.component == component]
    each = {f"mistakes/{mistake.id}.md": _page(mistake, spec, words) for mistake in spec.mistakes.values()}
    return {"mistakes/index.md": "\n".join(parts), **each}


def _entry(mistake: Mistake, words: Words) -> str:
    return f"### {link('mistake', mistake.id)}\n\n{_sentence(mistake, words)} {words.plain(mistake.symptom)}\n"


def _sentence(mistake: Mistake, words: Words) -> str:
    title = words.plain(mistake.title)
    return f"{title if title[:1] in '`√' else title[0].upper() + title[1:]}."


def _page(mistake: Mistake, spec: Spec, words: Words) -> str:
    checks = [check.id for check in spec.checks_catching(mistake.id)]
    component = mistake.component
    code = zip(("Instead of", "Write"), mistake.code or (), strict=False)
    facts = fields(
        [
            *((label, f"`{line}`") for label, line in code),
            ("Fix", words.plain(mistake.hint)),
            ("Component", link("component", component) if component in spec.contracts else ""),
            ("Written", "" if mistake.code else words.plain(mistake.does)),
            ("Symptom", words.plain(mistake.symptom)),
            ("Why", words.plain(mistake.why)),
            ("Shown by", words.plain(mistake.reveals)),
            ("Hidden by", words.plain(mistake.hides)),
            ("Error", words.plain(mistake.error or "")),
            ("Seen", ", ".join(f"[{words.plain(place)}]({find_address(place)})" for place in mistake.seen)),
            ("Caught by", words.checks(checks)),
        ]
    )
    # The list leads here: hundreds of pages in the sidebar of every page would hide the others.
    head = f"---\norphan: true\n---\n\n{target('mistake', mistake.id)}# {mistake.id}\n"
    return f"{head}\n{_sentence(mistake, words)}\n\n{facts}\n[All known mistakes](#known-mistakes)\n"
