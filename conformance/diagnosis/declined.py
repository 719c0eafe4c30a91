"""The option of a convention that explains which calls an implementation declines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from goldformer.adapters.protocol import TAKES_NO, find_option
from goldformer.conformance.diagnosis.causes import Cause, make_option_cause
from goldformer.conformance.judging.verdict import Verdict
from goldformer.spec import Case, Spec


def explain_declined(verdicts: Iterable[Verdict], conventions: Mapping[str, str], spec: Spec) -> Cause | None:
    """Return the option to declare if one explains every declined case of a component; None if none does.

    Under such an option every declined call has just the arguments of calls that were judged, or is not made; every
    judged call is made as before. `conventions` are those that the adapter declares. A call with an optional argument
    that the function does not take explains itself.
    """
    listed = [v for v in verdicts if v.asks == "values" and v.check in spec.cases]
    judged = [spec.cases[v.check] for v in listed if v.is_judged and v.reason != "not-implemented"]
    declined = [spec.cases[v.check] for v in listed if v.reason == "not-implemented" and TAKES_NO not in v.message]
    if not judged or not declined:
        return None
    component = judged[0].component
    declared = {name: find_option(conventions, name, component, spec) for name in spec.conventions}
    usual = [_list_arguments(case, declared) for case in judged]
    never_else, always = frozenset[str]().union(*usual), frozenset.intersection(*usual)

    def is_usual(case: Case, options: Mapping[str, str]) -> bool:
        return always <= _list_arguments(case, options) <= never_else

    if any(is_usual(case, declared) for case in declined):
        return None
    for convention, option in _list_others(declared, spec):
        options = {**declared, convention: option}
        kept = not any(case.explain_unfit(options) for case in judged)
        if kept and all(case.explain_unfit(options) or is_usual(case, options) for case in declined):
            return make_option_cause(convention, option, spec)
    return None


def _list_arguments(case: Case, options: Mapping[str, str]) -> frozenset[str]:
    """Return the names of what a case is called with under some options, without the places in layers."""
    called = case.under(options)
    return frozenset((*called.inputs, *called.attributes, *(name.rpartition(".")[2] for name in called.params)))


def _list_others(declared: Mapping[str, str], spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield every option of a convention that is not the declared one."""
    for name, convention in spec.conventions.items():
        yield from ((name, option) for option in convention.options if option != declared[name])
