"""Every room of the house says what it is for, and exports its public names."""

from __future__ import annotations

import importlib
import pydoc
import subprocess
import sys

import pytest

import goldformer
from goldformer_site.rooms import draw_rooms, insert_drawing
from repository import REPOSITORY

#: The rooms, as folders of the repository.
ROOMS = [
    "spec",
    "spec/formulas",
    "spec/oracle",
    "reference_impl",
    "adapters",
    "adapters/bridges",
    "adapters/inference",
    "adapters/process",
    "adapters/textbook",
    "conformance",
    "conformance/judging",
    "conformance/properties",
    "conformance/diagnosis",
    "conformance/diagnosis/mistakes",
    "conformance/reports",
    "conformance/api",
    "conformance/baseline",
    "conformance/grading",
    "conformance/commands",
    "conformance/trace",
    "conformance/grading/results",
    "conformance/grading/sandbox",
]

#: The longest README of a room, in lines with text after its title.
LONGEST = 10
#: Of a room that is explained on a page, with an example.
PAGES = {"conformance/diagnosis": 40}


# The README of the spec is the table that `goldformer coverage --write` makes.
@pytest.mark.parametrize("room", [room for room in ROOMS if room != "spec"])
def test_a_room_has_a_short_readme(room: str) -> None:
    readme = REPOSITORY / room / "README.md"
    assert readme.is_file(), f"{room} has no README.md: say there what it does, and what it must not know"
    title, *lines = [line for line in readme.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert title.startswith("# "), f"{room}/README.md begins with {title!r}: begin with a title"
    most = PAGES.get(room, LONGEST)
    assert len(lines) <= most, f"{room}/README.md has {len(lines)} lines after its title: keep {most}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_public_names_of_a_room_exist(room: str) -> None:
    package = importlib.import_module(f"goldformer.{room.replace('/', '.')}")
    names = list(getattr(package, "__all__", []))
    assert len(set(names)) == len(names), f"{room} exports a name twice"
    missing = [name for name in names if not hasattr(package, name)]
    assert not missing, f"{room} exports {', '.join(missing)}, which it does not have"


@pytest.mark.parametrize("room", ["judging", "properties", "diagnosis"])
def test_importing_a_room_imports_nothing_heavy(room: str) -> None:
    code = f"import sys, goldformer.conformance.{room}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "torch", "hypothesis", "goldformer.spec"} & set(loaded)


#: Those whose names are imported when they are used.
LAZY = [room for room in ROOMS if "load_on_use" in (REPOSITORY / room / "__init__.py").read_text(encoding="utf-8")]


@pytest.mark.parametrize("room", ["", *LAZY])
def test_tab_in_a_notebook_lists_the_public_names_of_a_room_and_imports_nothing(room: str) -> None:
    name = f"goldformer.{room.replace('/', '.')}" if room else "goldformer"
    code = (
        f"import sys, {name}; room = sys.modules[{name!r}]; before = [*sys.modules]\n"
        "print(dir(room) == sorted(room.__all__), *dir(room))\n"
        "print(*(sys.modules.keys() - set(before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    (listed, *names), loaded = (line.split() for line in done.stdout.split("\n")[:2])
    assert listed == "True"
    assert loaded == []
    if not room:
        public = "NonConformance Report __version__ assert_correct check expected trace trace_arrays"
        assert names == public.split()


def test_help_lists_the_public_names_alone() -> None:
    text = pydoc.plain(pydoc.render_doc(goldformer))
    assert [name for name in ("check(", "expected(", "assert_correct(", "class Report") if name not in text] == []
    assert [name for name in ("__getattr__", "__dir__", "load_on_use") if name in text] == []


def test_the_page_draws_the_rooms_as_they_import_one_another() -> None:
    page = (REPOSITORY / "docs" / "extend.md").read_text(encoding="utf-8")
    advice = "docs/extend.md is out of date: run PYTHONPATH=docs/_ext .venv/bin/python -m goldformer_site.rooms"
    assert insert_drawing(page) == page, advice


def test_the_drawing_has_each_room_after_those_that_import_it() -> None:
    lines = [line.partition("──▶") for line in draw_rooms().splitlines()]
    order = [room.strip() for room, _, _ in lines]
    assert {"spec/", "adapters/", "conformance/judging/", "conformance/commands/"} <= set(order)
    below = [
        (order.index(room.strip()), order.index(name)) for room, _, to in lines if to for name in to.strip().split(", ")
    ]
    assert below
    assert all(above < under for above, under in below)
