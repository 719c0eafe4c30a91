"""Samples of exhaustive tests: `make test` runs a part of each, which moves with the commit; `make test-all` runs all.

Of a test with `@pytest.mark.sample(20)`, 20 of its parametrised items run, or one in thirty if these are more; with
`sample(0)`, one in thirty. Each item has its turn, by the hash of its id, and HEAD says whose turn it is: in thirty
commits in a row every item has run. Without git it is always the same turn.
Items that are named on the command line (`test_x.py::test_y[z]`, or `-k`) always run.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict

import pytest

from repository import REPOSITORY

MARKER = "sample(n): run n of the items of an exhaustive test, in turn, unless --all is given"
#: In so many commits every item has run.
COMMITS = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all and --turn."""
    parser.addoption("--all", action="store_true", help="run exhaustive tests in full, not a sample of their items")
    parser.addoption("--turn", type=int, help="whose turn it is in exhaustive tests; by default HEAD says it")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the items of exhaustive tests that are not in the sample."""
    if config.getoption("--all") or config.getoption("keyword") or any("::" in word for word in config.args):
        return
    exhaustive: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for item in items:
        if marker := item.get_closest_marker("sample"):
            test = item.nodeid.partition("[")[0]
            exhaustive[test][item.nodeid] = item
            (sizes[test],) = marker.args
    given = config.getoption("--turn")
    turn = given if given is not None else count_commits() if exhaustive else 0
    left_out = {
        item
        for test, own in exhaustive.items()
        for id_, item in own.items()
        if id_ not in choose([*own], sizes[test], turn)
    }
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def choose(ids: list[str], size: int, turn: int) -> set[str]:
    """Return the ids of a test whose turn it is: `size` of them or a few more, each once in at most COMMITS turns."""
    turns = max(1, min(COMMITS, len(ids) // size)) if size else COMMITS
    # The tests begin at different turns: those with one item do not all run at the same commit.
    first = int.from_bytes(_hash(ids[0].partition("[")[0]))
    return {id_ for place, id_ in enumerate(sorted(ids, key=_hash)) if (first + place - turn) % turns == 0}


def count_commits() -> int:
    """Return the number of commits up to HEAD; of a shallow clone, a number by the hash of HEAD; without git, 0."""
    try:
        if _ask_git("rev-parse", "--is-shallow-repository") == "true":
            return int(_ask_git("rev-parse", "HEAD"), 16)
        return int(_ask_git("rev-list", "--count", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return 0


def _ask_git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.rpartition("/")[2].encode()).digest()
