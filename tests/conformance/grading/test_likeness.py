"""Shared code is found whatever its names, and code that was handed out does not count."""

from __future__ import annotations

import pytest

from goldformer.conformance.commands.assignment import READY
from goldformer.conformance.grading.likeness import find_alike, take_fingerprints

SOLUTION = (READY / "attention" / "solution.py").read_bytes()
STARTER = (READY / "attention" / "starter.py").read_bytes()
#: The same task in another hand.
OTHER = b"""
import torch

def softmax(s):
    s = s - torch.amax(s, -1, True)
    e = s.exp()
    return torch.div(e, torch.sum(e, -1, keepdim=True))

def scaled_dot_product_attention(query, key, value, mask=None):
    d = query.size(-1)
    att = torch.einsum("...qd,...kd->...qk", query, key) * d ** -0.5
    if mask is None:
        w = softmax(att)
    else:
        w = softmax(torch.where(mask, att, torch.full_like(att, float("-inf"))))
    return torch.einsum("...qk,...kv->...qv", w, value), w

def causal_mask(q_seq, kv_seq):
    rows, cols = torch.arange(q_seq)[:, None], torch.arange(kv_seq)[None]
    return cols <= rows
"""


def find(**sources):
    prints = {id_: take_fingerprints({"submission.py": source}) for id_, source in sources.items()}
    return [(p.first, p.second) for p in find_alike(prints, take_fingerprints({"starter.py": STARTER}))]


def test_new_names_comments_and_layout_hide_nothing():
    text = SOLUTION.decode().replace("powers", "e").replace("scores", "logits").replace("batch", "b")
    lines = [f"{line}  # mine" if line.endswith(":") else line for line in text.splitlines()]
    lines[0] = '"""I wrote this."""'
    assert find(ada=SOLUTION, ben="\n\n".join(lines).encode(), cai=OTHER) == [("ada", "ben")]


def test_the_starter_does_not_count():
    filled = STARTER.replace(b"raise NotImplementedError", b"return 0")
    assert find(ada=STARTER, ben=STARTER) == []
    assert find(ada=filled, ben=SOLUTION) == []


def test_part_of_a_longer_submission_is_found():
    padded = b"def unrelated(a, b):\n    return [a + b * i for i in range(10) if i % 3]\n\n\n" * 1 + OTHER + SOLUTION
    assert find(ada=padded, ben=SOLUTION) == [("ada", "ben")]


def test_what_everybody_writes_is_not_shared_code():
    many = {f"s{nth:02}": SOLUTION for nth in range(30)}
    assert find(**many) == []
    assert len(find(**dict(list(many.items())[:3]))) == 3


def test_the_order_of_submissions_makes_no_difference():
    sources = {"ada": SOLUTION, "ben": SOLUTION + OTHER, "cai": OTHER}
    assert find(**sources) == find(**dict(reversed(sources.items())))
    assert find(**sources) == [("ada", "ben"), ("ben", "cai")]


@pytest.mark.parametrize(
    "source", [b"", b"def (", b"\xff\xfe\x00", b"'''", b"(" * 100_000, b"x = 1\n" * 100_000, b"\x0c\\"]
)
def test_any_bytes_have_fingerprints(source):
    assert find(ada=source, ben=source) in ([], [("ada", "ben")])
