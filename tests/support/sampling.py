"""Samples of exhaustive tests: `make test` runs a part of each, `make test-all` runs everything.

A test with `@pytest.mark.sample(20)` runs 20 of its parametrised items, and `sample(0)` runs none. The items are chosen
by a hash of their ids: the same ones in every run and in every process, and few of them change when items are added.
Items that are named on the command line (`test_x.py::test_y[z]`, or `-k`) always run.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict

import pytest

MARKER = "sample(n): run n of the items of an exhaustive test, unless --all is given"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all."""
    parser.addoption("--all", action="store_true", help="run exhaustive tests in full, not a sample of their items")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the items of exhaustive tests that are not in the sample."""
    if config.getoption("--all") or config.getoption("keyword") or any("::" in word for word in config.args):
        return
    exhaustive: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for item in items:
        if marker := item.get_closest_marker("sample"):
            test = item.nodeid.partition("[")[0]
            exhaustive[test].append(item)
            (sizes[test],) = marker.args
    left_out = {item for test, own in exhaustive.items() for item in sorted(own, key=_rank)[sizes[test] :]}
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _rank(item: pytest.Item) -> bytes:
    return hashlib.sha256(item.nodeid.rpartition("/")[2].encode()).digest()
