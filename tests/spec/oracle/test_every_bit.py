"""Numbers drawn with all bits mean themselves: golden values are of them, and only float64 holds them."""

from __future__ import annotations

import flint
import numpy as np
import pytest

from goldformer.spec import Spec
from goldformer.spec.oracle import balls
from goldformer.spec.oracle.derive import Method
from goldformer.spec.oracle.rounding import Rounding
from goldformer.spec.oracle.truth import make_call


def test_balls_read_them_without_the_rounding_of_a_decimal(spec: Spec):
    case = spec.cases["pad-every-bit"]
    proven = Method(case, spec.contracts[case.component], {}).run_balls()["output"][:, :3].ravel()
    numbers = case.input_arrays["x"].ravel()
    assert all(bool(ball == flint.arb(number)) for ball, number in zip(proven, numbers, strict=True))
    # Their shortest decimals are other numbers.
    assert not any(bool(balls.read(number) == flint.arb(number)) for number in numbers.tolist())


@pytest.mark.parametrize(("dtype", "is_exact"), [("float64", True), ("float32", False), ("bfloat16", False)])
def test_float64_holds_them_and_every_other_dtype_rounds_them_once(spec: Spec, dtype, is_exact):
    case = spec.cases["pad-every-bit"]
    call = make_call(case, {}, spec.contracts[case.component])
    variance = call.evaluate(Rounding.of(dtype)).outputs["output"].variance
    if is_exact:
        assert variance is None
        return
    x = case.input_arrays["x"]
    once = Rounding.of(dtype).of_result(x)
    assert np.allclose(variance[:, : x.shape[1]], once, rtol=1.0)
