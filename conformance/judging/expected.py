"""The golden values of a case under some options, with what rounding may add to each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from goldformer.spec import Case, Contract
from goldformer.spec.model import GoldenArray
from goldformer.spec.oracle.derive import choose_options
from goldformer.spec.oracle.truth import Call, OutputRounding


def expect(case: Case, options: Mapping[str, str], contract: Contract) -> Mapping[str, GoldenArray] | None:
    """Return the golden values for a combination of options; None if one of them refuses the call."""
    outputs = case.expects(options)
    return outputs and add_rounding(outputs, case, make_call(case, options, contract))


def make_call(case: Case, options: Mapping[str, str], contract: Contract, *, held: bool = False) -> Call:
    """Return the call of a case under some options. With `held`, its arrays are the exact numbers of a call."""
    chosen = {name: options[name] for name in contract.conventions if name in options}
    called = choose_options(case, contract, chosen)
    wanted = () if case.golden is not None else tuple(case.expect)
    arrays = (case.input_arrays, case.param_arrays)
    return Call(case.component, *arrays, case.attributes, called, held, wanted, contract)


def add_rounding(
    outputs: Mapping[str, GoldenArray], case: Case, call: Call, *, unproven: bool = False
) -> dict[str, GoldenArray]:
    """Return golden values with the rounding errors of their call.

    Those of gradients, of chance, and of a full-size model, whose call would take seconds, have a scale instead.
    """
    if case.cotangent is not None or case.full_size:
        return dict(outputs)
    is_judged = {name: g.within is None and g.values.dtype.kind == "f" for name, g in outputs.items()}
    return {
        name: replace(golden, rounding=OutputRounding(call, name, unproven)) if is_judged[name] else golden
        for name, golden in outputs.items()
    }
