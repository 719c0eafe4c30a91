"""Scripts of calls: what each call has of the whole sequence, and what no script may say."""

from __future__ import annotations

import numpy as np
import pytest

from goldformer.spec import Spec
from goldformer.spec.call import check_call
from goldformer.spec.sessions import read_script
from goldformer.spec.shapes import ContractViolation

NAME = "cached_attention"


def tokens(seq=7, **changed):
    shapes = {"query": (2, 4, seq, 3), "key": (2, 2, seq, 3), "value": (2, 2, seq, 5), **changed}
    return {name: np.arange(np.prod(shape), dtype=float).reshape(shape) for name, shape in shapes.items()}


def test_a_script_without_after_continues_call_by_call():
    calls = read_script({"calls": (3, 2, 1)})
    assert [(c.number, c.after, c.start, c.stop) for c in calls] == [(1, 0, 0, 3), (2, 1, 3, 5), (3, 2, 5, 6)]
    assert [c.so_far for c in calls] == [(0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)]


def test_a_call_has_the_rows_of_the_calls_that_it_continues_and_no_others():
    calls = read_script({"calls": (2, 1, 2, 1), "after": (0, 1, 1, 0)})
    assert [c.so_far for c in calls] == [(0, 1), (0, 1, 2), (0, 1, 3, 4), (5,)]


def test_a_call_gets_its_new_rows_and_the_mask_of_all_so_far(spec: Spec):
    contract, inputs = spec.contracts[NAME], tokens()
    inputs["mask"] = np.arange(14).reshape(2, 1, 1, 7) % 3 > 0
    attributes = {"calls": (3, 2, 2), "after": (0, 1, 1)}
    check_call(contract, inputs, {}, attributes)
    _, _, (call, last) = contract.split_session(inputs, attributes)
    assert (call.number, call.after) == (3, 1)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(last[name], inputs[name][:, :, 5:7])
    np.testing.assert_array_equal(last["mask"], inputs["mask"][..., [0, 1, 2, 5, 6]])


def test_a_call_has_a_state_and_no_script(spec: Spec):
    assert spec.contracts[NAME].names_of_call == ("query", "key", "value", "mask", "state")
    assert spec.contracts["softmax"].names_of_call == ("scores",)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"calls": (3, 3)}, r"calls is \[3, 3\], 6 tokens in all, but query has 7"),
        ({"calls": ()}, r"calls is \[\]: write 1 to 64 numbers of new tokens, each 1 or more"),
        ({"calls": (7, 0)}, r"calls is \[7, 0\]: write 1 to 64 numbers of new tokens, each 1 or more"),
        ({"calls": 7}, "calls is 7, not a list of ints"),
        ({"calls": (3, True, 3)}, r"calls is \(3, True, 3\), not a list of ints"),
        ({}, "calls is None, not a list of ints"),
        (
            {"calls": (3, 4), "after": (0, 2)},
            r"after is \[0, 2\] for 2 calls: write for each call the number of an earlier one, counted from 1, or 0 "
            "where a sequence begins",
        ),
        ({"calls": (3, 4), "after": (0,)}, r"after is \[0\] for 2 calls: write for each call"),
        ({"calls": (3, 4), "after": (-1, 0)}, r"after is \[-1, 0\] for 2 calls: write for each call"),
    ],
)
def test_a_script_that_does_not_cut_the_tokens_is_refused(spec: Spec, attributes, says):
    with pytest.raises(ContractViolation, match=f"^{says}"):
        check_call(spec.contracts[NAME], tokens(), {}, attributes)


def test_a_session_has_at_most_64_calls(spec: Spec):
    check_call(spec.contracts[NAME], tokens(64), {}, {"calls": (1,) * 64})
    with pytest.raises(ContractViolation, match="write 1 to 64 numbers of new tokens"):
        check_call(spec.contracts[NAME], tokens(65), {}, {"calls": (1,) * 65})
