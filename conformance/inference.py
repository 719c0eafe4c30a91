"""The adapter of a class or a function, inferred: names and shapes propose, golden values decide.

The proposals stand in `goldformer.adapters.inference`, which does not know what is right. Here each one is called with
golden cases, first without a mask, then with masks, then where conventions show. No proposal changes what the target
computes, so that a mistake in it stays one. Then no call gives golden values, and names alone say how it is called.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from goldformer.adapters import Adapter
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.inference import (
    COMPONENTS,
    ChoiceError,
    InferenceError,
    MisfitError,
    Target,
    Wiring,
    explain_parts,
    explain_unbuilt,
    has_fixed_sizes,
    load_wiring,
    read_target,
)
from goldformer.adapters.inference.names import ARGUMENTS, VAGUE, list_roles
from goldformer.adapters.inference.target import PROBE
from goldformer.adapters.protocol import INFERRED_FUNCTIONS
from goldformer.conformance.choices import CHOICES
from goldformer.conformance.wiring_search import WiringSearch
from goldformer.spec import Spec, load_spec
from goldformer.spec.scope import find_component_named
from goldformer.spec.tables import write_number

#: The words of a class that has such parts, and is none itself.
_WHOLE: Final = re.compile("att|block|layer|model|former|coder")
#: The next step where code has what goldformer does not judge.
_WITHOUT: Final = "Check a part that does not use it"
#: What is said of a class that is taken for no component.
_HELPER: Final = (
    "is taken for a helper: no golden value fits, and neither its name nor its code says what component it is. If it "
    "is one, pass --component, or component= in Python"
)
#: The inputs of an attention, which no other component has.
_ATTENTION: Final = frozenset({"query", "key", "value"})
#: The components whose options the parts of a class say.
_PARTS: Final = ("layer_norm", "rms_norm", "token_embedding", "positional_encoding")


@dataclass(frozen=True)
class Inference:
    """An adapter, what was chosen for it, and whether golden values prove it.

    `is_proven` is True if it is the only one that fits the golden cases that decide; `failing` small cases fail all the
    same. If it is not proven, it is what the names say, and code that is right may be called in another way or compute
    something else; `doubt` is what the names leave open, "" if they decide all of it.
    """

    wiring: Wiring
    adapter: Adapter
    trials: int
    failing: int = 0
    is_proven: bool = False
    doubt: str = ""
    #: The wiring of the same class in several calls, if it keeps keys and values between them.
    session: Wiring | None = None

    @property
    def fits(self) -> bool:
        """Return True if no small golden case fails."""
        return self.is_proven and not self.failing

    @property
    def component(self) -> str:
        """The component that the target is."""
        return self.wiring.component

    def write(self, detour: str = "") -> str:
        """Return the text of an adapter file, which says at its top what was inferred.

        `detour` is the folder of the class as seen from the file, if it stands in another one.
        """
        name = self.wiring.target.name
        others = (self.session,) if self.session else ()
        return self.wiring.write(f"Adapter of {name}, inferred by `goldformer infer`: {self.summary}", detour, others)

    @property
    def summary(self) -> str:
        """One sentence on what it rests on."""
        if self.fits:
            return "golden values fit."
        if self.is_proven:
            return f"golden values fit, except in {self.failing} cases."
        return "names and shapes fit, golden values do not."


def infer_adapter(
    what: Any, component: str | None = None, spec: Spec | None = None, *, accept: Collection[str] = ()
) -> Inference:
    """Return the adapter of an nn.Module class, an object of one, a function, or "FILE.py:NAME".

    `accept` are choices of CHOICES that are meant although the code does not say them. InferenceError is a question:
    what could not be inferred, and how to say it.
    """
    target = read_target(what)
    if component is not None and component not in COMPONENTS:
        raise InferenceError(f"{component}: no adapter is inferred for it; components are {', '.join(COMPONENTS)}")
    with LIBRARIES[target.arrays].keep_settings():
        return _infer(target, component, spec or load_spec(), accept)


def _infer(target: Target, component: str | None, spec: Spec, accept: Collection[str]) -> Inference:
    """Return the adapter of a target, found by calling it."""
    if component is None and not target.is_class and target.name in INFERRED_FUNCTIONS:
        component = target.name
    searches = [WiringSearch(spec, target, name) for name in ([component] if component else COMPONENTS)]
    searches = [search for search in searches if search.wirings]
    if not searches:
        raise InferenceError(_ask_what(target, component))
    found = [(search, wiring) for search in searches for wiring in search.find()]
    for search in () if found else [search for search in searches if search.is_of_float32]:
        search.dtype = "float32"
        found += [(search, search.find_dtypes(wiring)) for wiring in search.find()]
    found = found or [(search, wiring) for search in searches for wiring in search.find_steps()]
    if not target.is_class:
        searches = _drop_special_cases(searches, spec)
        found = [(search, wiring) for search, wiring in found if search in searches]
    if len(found) > 1:
        raise ChoiceError(_ask_which(target, [wiring for _, wiring in found]))
    trials = sum(search.trials for search in searches)
    if found:
        search, wiring = found[0]
        wiring = search.hold_axes(search.pass_padding(search.add_input(search.expect_causal(wiring))))
        if unsaid := [choice for choice in wiring.unsaid if choice not in accept]:
            raise ChoiceError(_ask_whether(wiring, unsaid[0]))
        wiring, failing = search.confirm(wiring)
        session = search.find_session(wiring)
        adapter = load_wiring(wiring, spec, *filter(None, [session]))
        return Inference(wiring, adapter, trials, failing, is_proven=True, session=session)
    # A helper such as a linear map is like them too: if no golden value fits, only its name can say so.
    searches = [search for search in searches if component or _may_be(target, search.component)]
    if not searches:
        raise InferenceError(_ask_what(target, None) if _find_itself(target) else f"{target.name} {_HELPER}")
    called = [search for search in searches if search.running]
    if not called:
        raise MisfitError(_ask_how(searches[0]))
    itself = _find_itself(target)
    called = [search for search in called if search.component == itself] or called
    wiring, doubt = called[0].guess(_read_parts(called[0]))
    if declared := called[0].declare_eps(wiring, called[0].try_small(wiring)):
        return Inference(declared, load_wiring(declared, spec), trials, is_proven=True)
    return Inference(wiring, load_wiring(wiring, spec), trials, doubt=_find_doubt(called, wiring) or doubt)


def _may_be(target: Target, component: str) -> bool:
    """Return False for a class that could be any helper, and whose name says nothing of the component."""
    if not target.is_class or component not in VAGUE:
        return True
    named, used = VAGUE[component]
    return bool(re.search(named, target.name.lower()) or re.search(used, target.text))


def _drop_special_cases(searches: list[WiringSearch], spec: Spec) -> list[WiringSearch]:
    """Return the searches of a function without the components that another one which it can be called as contains.

    Grouped-query attention is plain attention where there are as many heads of keys as of queries. It gives values
    for other numbers of heads too, right or wrong ones, and plain attention raises.
    """
    parts = {part for search in searches if search.running for part in spec.list_dependencies(search.component)}
    return [search for search in searches if search.component not in parts]


def describe_fit(found: Inference) -> str:
    """Return what golden values say of an inferred adapter as a sentence."""
    name, component = found.wiring.target.name, found.component
    if found.fits:
        return f"Golden values fit: {name} computes {component}, called in this way."
    if found.is_proven:
        fail = "small case fails" if found.failing == 1 else "small cases fail"
        return f"Golden values decide it, but {found.failing} {fail}: `goldformer check` looks for the mistake."
    no_call = f"No call of {name} that was tried gives golden values"
    if not found.doubt:
        return f"{no_call}. Its names say this one: `goldformer check` looks for mistakes that explain what it gives."
    return _explain_by_names(found.wiring.target, component) or (
        f"{no_call}, and {found.doubt}. It has a mistake, it is called in another way, or it computes something else. "
        "`goldformer infer` writes the adapter that its names suggest: compare it with your code, and check it."
    )


def _explain_by_names(target: Target, component: str) -> str:
    """Return why no call of a target is right as a component, as far as names say; "" if they say nothing."""
    itself, scope = _find_itself(target), target.explain_scope(component)
    if itself not in (None, component):
        return f"{_ask_what(target, itself)}."
    return f"No call of {target.name} that was tried gives golden values: {scope}. {_WITHOUT}." if scope else ""


def _find_doubt(called: Sequence[WiringSearch], wiring: Wiring) -> str:
    """Return what the name of a target leaves open of what it is, or ""."""
    target, component = wiring.target, wiring.component
    if scope := target.explain_scope(component):
        return scope
    if len(called) > 1:
        return f"it may be {' or '.join(search.component for search in called)}"
    if wiring.naming.names or _find_attention_roles(target) == _ATTENTION:
        return ""
    words, _ = VAGUE.get(component, (component.replace("_", "|"), ""))
    is_said = re.search(words, target.name.lower()) or (target.is_class and component in VAGUE)
    return "" if is_said else f"its name does not say {component}"


def _read_parts(search: WiringSearch) -> dict[str, str]:
    """Return the options that the parts of a class have: the eps of PyTorch's norms, and what is proven of own ones."""
    target, spec = search.target, search.spec
    if not target.is_class:
        return {}
    from torch import nn

    said: dict[str, set[str]] = {}
    for part in {type(part): part for part in target.build(search.wirings[0].construction, PROBE).modules()}.values():
        if isinstance(part, nn.LayerNorm):
            said.setdefault("layer_norm_eps", set()).add(write_number(part.eps) or "")
        elif type(part) is not target.thing and not type(part).__module__.startswith("torch"):
            own = Target(type(part), type(part).__name__, "")
            for other in (WiringSearch(spec, own, name) for name in _PARTS):
                for wiring in other.find() if other.wirings else ():
                    for name, option in other.confirm(wiring)[0].declared.items():
                        said.setdefault(name, set()).add(option)
    return {name: next(iter(options)) for name, options in said.items() if len(options) == 1}


def _ask_what(target: Target, component: str | None) -> str:
    if target.is_class and (ready := explain_parts(target)):
        return f"{target.name} {ready}"
    component = component or _find_itself(target)
    if scope := target.explain_scope(*filter(None, [component])):
        return f"{target.name}: {scope}. {_WITHOUT}"
    unbuilt = explain_unbuilt(target) if target.is_class else ""
    arguments = ", ".join(argument.name for argument in target.list_arguments())
    problem = f"has arguments or parameters that {f'{component} has not' if component else 'no component has'}"
    if unbuilt:
        problem = f"cannot be built: {unbuilt}"
    elif target.is_class and has_fixed_sizes(target):
        sizes = "every golden case has sizes of its own: give __init__ arguments such as d_model and num_heads"
        constants = "let an adapter set the constants of its file before it builds one"
        problem = f"takes no sizes in its constructor, and {sizes}, or {constants}"
    elif component is not None and not target.is_class:
        problem = f"takes ({arguments}), which are not the inputs and parameters that {component} has"
    elif component is None:
        part = "infer a part of it, such as its layer or its attention"
        if _find_attention_roles(target) == _ATTENTION:
            part = "compare its parameters with those that `goldformer explain multi_head_attention` shows"
        rename = "give them usual names, such as query, key, value and mask"
        problem += f". Its arguments are ({arguments}): {part if target.is_class else rename}"
    if target.is_class and not unbuilt and (silent := target.list_silent()):
        remedy = "a subclass whose __init__ takes its sizes by usual names can"
        problem += f". Nothing says the meaning of {' and '.join(silent)} in its constructor: {remedy}"
    return f"{target.name} {problem}. `goldformer new` writes an adapter to fill in"


def _find_itself(target: Target) -> str | None:
    """Return the component that a part of another one is by itself, if that part is what the target's name says."""
    itself = find_component_named(target.name)
    return itself if itself in COMPONENTS and not _WHOLE.search(target.name.lower()) else None


def _find_attention_roles(target: Target) -> set[str]:
    """Return which of query, key and value the arguments of a call say."""
    said = {role for argument in target.list_arguments() for role in list_roles(argument.name, ARGUMENTS)[:1]}
    return said & _ATTENTION


def _ask_how(search: WiringSearch) -> str:
    if itself := _find_itself(search.target):
        return _ask_what(search.target, itself)
    if scope := search.target.explain_scope(search.component):
        return f"{search.target.name}: {scope}. {_WITHOUT}"
    looks = f"{search.target.name} has the arguments and parameters of {search.component}"
    how = "If it is something else, pass --component, or component= in Python"
    return f"{looks}, but no call of it works: {search.problem}. {how}"


def _ask_whether(wiring: Wiring, choice: str) -> str:
    fits = f"golden values fit {wiring.target.name} as {wiring.component} only if {CHOICES[choice]}"
    meant = f"pass --accept {choice}, or accept={choice!r} in Python"
    return f"{fits}, and nothing in its code says so. If it is meant, {meant}; if not, it is a mistake"


def _ask_which(target: Target, found: Sequence[Wiring]) -> str:
    names = list(dict.fromkeys(wiring.component for wiring in found))
    if len(names) > 1:
        how = f"Pass --component {names[0]}, or component={names[0]!r} in Python"
        return f"{target.name} fits {' and '.join(names)}. Which is it? {how}"
    first, second = ([line.strip(" ,") for line in wiring.write("").splitlines()] for wiring in found[:2])
    both = ((first, second), (second, first))
    differences = [" · ".join(line for line in some if line not in others) for some, others in both]
    ways = f"{differences[0]}, or {differences[1]}"
    return f"{target.name} fits in two ways: {ways}. Which is meant? `goldformer new` writes an adapter that can say it"
