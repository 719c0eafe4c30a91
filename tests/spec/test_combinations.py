"""Whatever options an adapter declares together, each of its components is checked by a case that holds under them."""

from itertools import product

import pytest

from goldformer.spec import load_spec

SPEC = load_spec()
#: They change single calls or rows, in cases of their own, and decoding under them is checked with the defaults.
APART = {"empty_row", "causal_corner", "odd_d_model", "beam_finish", "length_penalty", "target_mask"}
DECODING = {"greedy_decode", "beam_search"}
#: Their options combine in thousands of ways: each is checked with the defaults of the others.
ONE_BY_ONE = {"decoder_only_model", "cached_model", "generate"}


def checked(component, options):
    return [
        case.id
        for case in SPEC.cases_of(component)
        if case.golden is not None
        and case.cotangent is None
        and all(options.get(name, SPEC.conventions[name].default) == only for name, only in case.only_with.items())
    ]


@pytest.mark.sample(15)
@pytest.mark.parametrize("component", SPEC.components)
def test_every_combination_of_options_is_checked(component):
    names = [name for name in SPEC.contracts[component].conventions if name not in APART]
    if component in DECODING:
        names.remove("pe_layout")
    combinations = list(product(*(SPEC.conventions[name].options for name in names)))
    if component in ONE_BY_ONE:
        defaults = [SPEC.conventions[name].default for name in names]
        combinations = [c for c in combinations if sum(map(str.__ne__, c, defaults)) < 2]
    unchecked = [options for options in combinations if not checked(component, dict(zip(names, options, strict=True)))]
    assert unchecked == []
