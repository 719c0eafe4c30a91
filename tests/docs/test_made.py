"""The pages of the site that are made of the spec, as Markdown: what they say, and where their links lead."""

from __future__ import annotations

import re

import pytest

from goldformer_site import components, reference_page
from goldformer_site.contents import contents
from goldformer_site.links import Links
from goldformer_site.markdown import Words
from goldformer_site.pages import pages
from repository import REPOSITORY


@pytest.fixture(scope="module")
def made(spec):
    return pages(spec)


def test_a_component_page_tells_its_contract(made, spec):
    text = made["components/encoder_layer.md"]
    for name in spec.contracts["encoder_layer"].params:
        assert f"`{name}`" in text
    # Of the layers of a stack one is shown.
    assert "`encoder.n.norm_1.gamma`" in made["components/encoder.md"]


def test_every_id_has_a_page(made, spec):
    text = "\n".join(made.values())
    kinds = {"clause": spec.clauses, "case": spec.cases, "mistake": spec.mistakes, "erratum": spec.errata}
    for kind, ids in kinds.items():
        for id_ in ids:
            assert text.count(f"({kind}-{id_.lower()})=\n") == 1, id_


def test_a_page_is_made_the_same_twice(made, spec):
    assert pages(spec) == made


def test_words_of_the_spec_are_text_and_their_clauses_are_links(spec):
    words = Words(spec)
    assert words.plain("<eos> | *a* and `a | b` of SDPA-1") == (
        r"\<eos> \| \*a\* and `a \| b` of [SDPA-1](#clause-sdpa-1)"
    )
    assert words.plain("SDPA-1 and SDPA-99", but="SDPA-1") == "SDPA-1 and SDPA-99"
    assert words.body("$$ SM-1 $$ SM-1") == "$$ SM-1 $$ [SM-1](#clause-sm-1)"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[a](../spec/transformer.md#sm-1--must--the-formula)", "[a](#clause-sm-1)"),
        ("[a](../spec/transformer.md#how-to-read-the-data)", "[a](#how-to-read-the-data)"),
        ("[a](../spec/cases/softmax.yaml)", "[a](#component-softmax)"),
        ("[a](../spec/contracts)", "[a](#the-components)"),
        ("[a](../spec/mistakes.yaml)", "[a](#known-mistakes)"),
        ("[a](../reference_impl)", "a"),
        ("[a](../README.md)", "[a](index.md)"),
        ("[a](../examples/ci/github-actions.yml)", "[a](../examples/ci/github-actions.yml)"),
        ("[a](tutorial.md)", "[a](tutorial.md)"),
        ("```text\n[a](../spec/contracts)\n```", "```text\n[a](../spec/contracts)\n```"),
    ],
)
def test_a_link_that_holds_on_github_leads_to_a_page(written, read, spec):
    assert Links(spec, REPOSITORY / "docs").lead_page(f"{written}\n") == f"{read}\n"


def test_a_page_that_is_not_in_the_contents_stands_under_more():
    found = contents("index", {"index", "tutorial", "strange", "generated/components/softmax"})
    assert re.findall(r":caption: (.*)\n\n(.*)\n", found) == [("Tutorial", "tutorial"), ("More", "strange")]


def test_every_component_stands_in_one_group(spec):
    listed = [name for names in components.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(spec.components)


def test_a_component_page_begins_with_the_formula_and_an_adapter(made):
    text = made["components/softmax.md"]
    places = [
        text.index(part) for part in ("# Softmax\n", "> `softmax(s)_j = exp", "def softmax(scores):", "## Inputs")
    ]
    assert places == sorted(places)


def test_every_mistake_has_a_page_and_a_line_in_the_list(made, spec):
    index = made["mistakes/index.md"]
    for mistake in spec.mistakes.values():
        page = made[f"mistakes/{mistake.id}.md"]
        assert f"\n(mistake-{mistake.id})=\n# {mistake.id}\n" in page
        assert "\n:Fix: " in page
        assert f"### [`{mistake.id}`](#mistake-{mistake.id})\n" in index


def test_the_page_of_the_reference_shows_every_line_once_with_the_clauses_that_judge_it(made, spec):
    text = made["transformer.md"]
    source = reference_page.FILE.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r":lineno-start: \d+\n\n(.*?)\n```\n", text, re.DOTALL))
    assert [line for line in code.splitlines() if line] == [line for line in source.splitlines() if line]
    lines = source.splitlines()
    for number, id_ in re.findall(r"line (\d+): \[([A-Z]+-\d+)\]", text):
        assert id_ in lines[int(number) - 1]
    named = set(re.findall(r"\b(?:SM|SDPA|MASK|EMB|PE|MHA|FFN|LN|LAYER|STACK|MODEL|OUT|DROP|GRAD)-\d+\b", source))
    assert len(named) > 40
    for id_ in named:
        assert id_ in spec.clauses
        assert f"[{id_}](#clause-{id_.lower()})" in text
    assert text.index("$$\n\\mathrm{Attention}") < text.index("def scaled_dot_product_attention")
    assert reference_page.EQUATIONS.keys() <= {part.name for part in reference_page.list_parts(source)}
