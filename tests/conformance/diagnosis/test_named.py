"""A program with a mistake is called what named.yaml says, and a right one is called nothing.

`python -m tests.conformance.diagnosis.test_named --write` fills in what the diagnosis says of new entries, to be read;
with `--all` of every entry, to be read in the diff.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.named import Entry, Said, judge, read_entries, read_entry

from goldformer.spec import Spec, load_spec

FILE = Path(__file__).with_name("named.yaml")


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("entry", read_entries(FILE), ids=lambda entry: entry.id)
def test_a_program_is_called_what_the_table_says(entry: Entry, spec: Spec) -> None:
    said = judge(entry, spec)
    assert said.finds == entry.finds, said.whole
    assert [words for words in (*entry.says, entry.place) if words not in said.whole] == [], said.whole
    assert bool(said.failing) == bool(entry.finds), said.failing


# Writing the table


def find_words(said: Said, spec: Spec) -> tuple[str, list[str]]:
    """Return the place, and the words of what is said that the catalogue does not hold."""
    places = re.findall(r", only in (.*?)(?=\. (?:It|The|Declare|In) |$)", said.whole)
    words = []
    for find, text in zip(said.finds, said.texts, strict=True):
        label, _, ids = find.partition(": ")
        places += [text] if label == "Place" else []
        words += re.findall(
            r"also has \w+: [\w.-]+|Declare CONVENTIONS = \{.*?\}|first wrong output is [\w ]+? in", text
        )
        if label in ("Mistake found", "Possible causes", "Closest known mistake") and ids not in spec.mistakes:
            words.append(re.split(r",? only in |\. It reproduces|\. The code also has", text)[0])
        elif label in ("Depends on size", "No effect", "If it has no such variant", "As printed in"):
            # Counts of cases are no promise.
            words.append(re.split(r"\. |;|, if ", re.sub(r"^Right in .* from", "from", text))[0])
    return next(iter(places), ""), [word[:150] for word in dict.fromkeys(words)]


class TableDumper(yaml.SafeDumper):
    """Writes text of several lines as such."""


def show_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


TableDumper.add_representer(str, show_text)


def write_table(*, everything: bool) -> None:
    """Write what is said of the entries that have no `finds` yet, or of all of them."""
    spec, table = load_spec(), yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for number, given in enumerate(table):
        if everything or "finds" not in given:
            said = judge(read_entry(given), spec)
            place, says = find_words(said, spec)
            given |= {"finds": list(said.finds), "place": place, "says": says}
            print(read_entry(given).id, said.whole, sep="\n  ", flush=True)
        table[number] = order_fields(given)
    head = "# What test_named.py judges: tests/support/named.py says what the fields mean.\n"
    text = yaml.dump(table, Dumper=TableDumper, width=120, sort_keys=False, allow_unicode=True)
    FILE.write_text(head + text, encoding="utf-8")


def order_fields(given: dict[str, Any]) -> dict[str, Any]:
    last = ("finds", "place", "says")
    ordered = [*(name for name in given if name not in last), *last]
    return {name: given[name] for name in ordered if given.get(name) or name == "finds"}


if __name__ == "__main__" and "--write" in sys.argv:
    write_table(everything="--all" in sys.argv)
