"""The pages are written in short sentences of plain words."""

from __future__ import annotations

import re

import pytest

from repository import REPOSITORY

#: The most words of a sentence on average: of all pages together, and of one page.
ALL, ONE = 18, 20
#: Words that have another meaning, or none, for readers in their second language.
MISLEADING = re.compile(
    r"\b(told|beside|so many|of which|of whom|that which|alike|anew|come by|holds of|lacks|mend(?:ed|s)?|"
    r"what was got)\b",
    re.IGNORECASE,
)
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
#: Code, tables, headings, and the addresses of links.
NO_PROSE = re.compile(r"^```.*?^```$|^\|.*?$|^#.*?$|(?<=\])\([^)]*\)", re.DOTALL | re.MULTILINE)
#: The end of a paragraph or of an entry of a list; the end of a sentence.
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)")
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`“*\[])")
WORD = re.compile(r"[A-Za-z0-9`√§][A-Za-z0-9`'’_\-./()=√§]*")


def count_words(text):
    """The number of words of each sentence; a single word is none."""
    paragraphs = PARAGRAPH.split(NO_PROSE.sub("", text))
    sentences = (s for p in paragraphs for s in SENTENCE.split(" ".join(p.split())))
    return [n for s in sentences if (n := len(WORD.findall(s))) > 1]


def test_sentences_are_counted():
    text = "# A title\n\nOne two three. `Four` five:\n- Six [seven](address.md) eight\n\n```text\nno words\n```\n"
    assert count_words(text) == [3, 2, 3]


def test_a_sentence_is_short_on_average():
    counts = [n for path in PAGES for n in count_words(path.read_text(encoding="utf-8"))]
    assert len(counts) > 1000
    assert sum(counts) / len(counts) < ALL


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_sentences_of_a_page_are_short_on_average(path):
    counts = count_words(path.read_text(encoding="utf-8"))
    # A page of tables has a few sentences, whose average says nothing.
    assert len(counts) < 10 or sum(counts) / len(counts) < ONE


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_word_misleads(path):
    assert MISLEADING.findall(NO_PROSE.sub("", path.read_text(encoding="utf-8"))) == []
