"""The sample of an exhaustive test moves with the commit, and has run everything after thirty commits."""

from __future__ import annotations

import pytest

from sampling import COMMITS, choose, count_commits


@pytest.mark.parametrize(("number", "size"), [(1, 0), (7, 0), (7, 3), (5, 5), (3, 8), (150, 5), (1000, 10)])
def test_every_item_has_its_turn_within_thirty_commits(number, size):
    ids = [f"tests/test_x.py::test_y[{index}]" for index in range(number)]
    first = count_commits()
    samples = [choose(ids, size, first + commit) for commit in range(COMMITS)]
    assert set.union(*samples) == {*ids}
    assert choose(ids[::-1], size, first) == samples[0]
    assert all(min(size, number) <= len(sample) <= max(2 * size, -(-number // COMMITS)) for sample in samples)
