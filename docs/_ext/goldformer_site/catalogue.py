"""The mistakes that people really make, by component."""

from __future__ import annotations

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


def page(spec: Spec) -> str:
    """Return the page of the whole catalogue."""
    words = Words(spec)
    parts = [_HEAD.format(number=len(spec.mistakes))]
    for component in dict.fromkeys(mistake.component for mistake in spec.mistakes.values()):
        parts.append(f"## {component}\n")
        parts += [_mistake(m, spec, words) for m in spec.mistakes.values() if m.component == component]
    return "\n".join(parts)


def _mistake(mistake: Mistake, spec: Spec, words: Words) -> str:
    checks = [check.id for check in spec.checks_catching(mistake.id)]
    component = mistake.component
    said = fields(
        [
            ("Component", link("component", component) if component in spec.contracts else ""),
            ("Written", words.plain(mistake.does)),
            ("Symptom", words.plain(mistake.symptom)),
            ("Why", words.plain(mistake.why)),
            ("Fix", words.plain(mistake.hint)),
            ("Shown by", words.plain(mistake.reveals)),
            ("Hidden by", words.plain(mistake.hides)),
            ("Seen", ", ".join(f"[{words.plain(place)}]({find_address(place)})" for place in mistake.seen)),
            ("Caught by", words.checks(checks)),
        ]
    )
    title = words.plain(mistake.title)
    sentence = title if title[:1] in "`√" else title[0].upper() + title[1:]
    return f"{target('mistake', mistake.id)}### {mistake.id}\n\n{sentence}.\n\n{said}"
