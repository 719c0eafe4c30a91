"""The options that an implementation follows though it declares others, read from a call whose parts are silent.

What is wrong in an attention or a feed-forward network does not show there. What is left are residuals, normalisations
and embedding, whose options then show by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.isolation.calls import Calls, Exhausted
from goldformer.conformance.diagnosis.isolation.search import rank_failing
from goldformer.conformance.diagnosis.isolation.switches import Switch, list_parts, make_uneven
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Arguments, Array, read_arguments
from goldformer.conformance.properties.measuring import measure_call
from goldformer.spec import Spec

#: The conventions of what is left when all parts are silent.
_CONVENTIONS: Final = ("norm_placement", "layer_norm_eps", "final_norm", "embedding_scale", "pe_layout")
_EPS: Final = ("layer_norm_eps",)

#: Error scales under two options are closer than this: what is further away than so many needs no scales of its own.
_CLEARLY: Final = 1000.0


def find_options(judgements: Mapping[int, Judgement], spec: Spec) -> dict[str, str]:
    """Return the options to assume instead of declared ones, the fewest that fit; none if the declared ones fit.

    The judgements are those of one component.
    """
    first = next(iter(rank_failing(judgements)), None)
    if first is None:
        return {}
    case, bench = judgements[first].case, judgements[first].bench
    assert case is not None, "only cases can begin"
    if "bos_id" in case.attributes:
        return {}  # words fit by chance
    base = read_arguments(case)
    parts = [part for part in list_parts(base) if not part.is_whole]
    if not parts:
        return {}
    calls, declared = Calls(bench, case.component), bench.adapter.options(case.component, spec)
    silent = {part.id: part.silence for part in parts}
    fitting = _fit(calls, _silence(base, silent.values()), declared, _CONVENTIONS)
    if fitting and fitting.get("norm_placement") == "pre":
        # With the normalisation first, none acts in silent parts: eps shows where one of them acts and is right.
        for part in parts:
            others = [silence for id_, silence in silent.items() if id_ not in (part.id, *part.behind)]
            if found := _fit(calls, _silence(base, others), fitting, _EPS):
                fitting = found
                break
    return {name: option for name, option in (fitting or declared).items() if option != declared[name]}


def _silence(arguments: Arguments, switches: Iterable[Switch]) -> Arguments:
    for switch in (*switches, make_uneven(arguments)):
        arguments = switch.change(arguments)
    return arguments


def _fit(calls: Calls, arguments: Arguments, start: dict[str, str], names: Sequence[str]) -> dict[str, str] | None:
    """Return the options of these names, with the fewest changes, that give the main output of a call."""
    spec, actual = calls.bench.spec, None
    with suppress(Exhausted):
        actual = calls.call(arguments)
    # Silent parts still return their weights.
    main = spec.contracts[calls.component].first_output
    if actual is None or main not in actual:
        return None
    combined = _list_combinations(start, [name for name in names if name in start], spec)
    judged = {main: actual[main]}
    wide: dict[str, float] = {}
    with suppress(KeyError, ValueError):  # the call may lack parameters of the declared options
        scales = measure_call(calls.component, arguments, start).scales
        wide = {name: _CLEARLY * scale for name, scale in scales.items()}
    return next((options for options in combined if _fits(calls, arguments, options, judged, wide)), None)


def _list_combinations(start: dict[str, str], names: Sequence[str], spec: Spec) -> Iterator[dict[str, str]]:
    """Yield all combinations of the options, those with the fewest changes first; no change at all is the first."""
    choices = [list(spec.conventions[name].options) for name in names]
    combined = [{**start, **dict(zip(names, options, strict=True))} for options in product(*choices)]
    yield from sorted(combined, key=lambda options: sum(options[name] != start[name] for name in names))


def _fits(
    calls: Calls, arguments: Arguments, options: dict[str, str], actual: Mapping[str, Array], wide: Mapping[str, float]
) -> bool:
    """Return True if the formulas give the outputs of a call under some options; far ones are told by `wide` scales."""
    if options.get("final_norm") == "after_stack":
        arguments = _add_norms(calls.component, arguments)
    try:
        if wide and calls.compare(actual, arguments, options, wide):
            return False
        scales = measure_call(calls.component, arguments, options).scales
        return not calls.compare(actual, arguments, options, scales)
    except (KeyError, ValueError):  # an option that needs parameters which this call has not
        return False


def _add_norms(component: str, arguments: Arguments) -> Arguments:
    """Return a call with final norms of gamma 1 and beta 0 where it has none: code that has one begins with these."""
    stacks = {"transformer": ("encoder_norm", "decoder_norm")}.get(component, ("norm",))
    one = np.ones_like(next(a for name, a in arguments.params.items() if name.endswith(".beta")))
    added = {f"{stack}.{name}": array for stack in stacks for name, array in (("gamma", one), ("beta", 0 * one))}
    return replace(arguments, params={**added, **arguments.params})
