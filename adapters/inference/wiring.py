"""The wiring of a class or a function: the data of its adapter, which calls it, and which is printed as `adapt(…)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

from goldformer.adapters import layouts
from goldformer.adapters.array_module import find_array_module
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.inference.caches import Cache, find_output, list_made
from goldformer.adapters.inference.calls import (
    Array,
    Calling,
    Returns,
    is_switched,
    leave_out_companions,
    list_masks,
)
from goldformer.adapters.inference.inputs import (
    ForwardArguments,
    MaskForm,
    MaskShape,
    Polarity,
    TableForm,
    says_ignore,
    says_sequence_first,
)
from goldformer.adapters.inference.numpy_classes import is_made_here
from goldformer.adapters.inference.parameters import Naming
from goldformer.adapters.inference.sessions import run_session
from goldformer.adapters.inference.target import Construction, Made, Target, as_module
from goldformer.adapters.protocol import INFERRED_FUNCTIONS, Adapter, AdapterError
from goldformer.spec import Spec, load_spec
from goldformer.spec.sessions import drop_script

#: The optional attributes that a target may take, with what they are where a call leaves them out.
_DEFAULTS: Final = {"base": 10000.0, "rotary_width": None, "pad_id": None}

#: The longest line of a file that is written.
_LINE: Final = 110


@dataclass(frozen=True)
class Wiring(Calling):
    """Everything that the adapter of one component consists of; `run` calls the target, `write` prints it."""

    @property
    def declared(self) -> dict[str, str]:
        """Its conventions, of those that the component has."""
        hidden = {"later_tokens": "hidden_only"} if self.mask.shape == "causal" else {}
        both = {**self.naming.conventions, **self.conventions, **hidden}
        return {name: option for name, option in both.items() if name in self.contract.conventions}

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs and parameters of ours that arguments of the call take, by these arguments."""
        ours = {*self.contract.inputs, *self.contract.params} - {*self.contract.masks}
        return {name: role for name, role in self.arguments.call.items() if isinstance(role, str) and role in ours}

    @property
    def call(self) -> str:
        """The call that is made, with what each argument stands for: Attention(width=d_model)(q=query)."""
        given = ", ".join(n if n == ours else f"{n}={ours}" for n, ours in self.inputs.items())
        sizes = ", ".join(f"{name}={role}" for name, role in self.construction.list_sizes())
        return f"{self.target.name}({sizes})({given})" if self.target.is_class else f"{self.target.name}({given})"

    @property
    def choices(self) -> tuple[str, ...]:
        """The layout of its arrays and its masks, as far as it was found out, in words."""
        return (*_describe_layout(self), *_describe_mask(self), *([self.cache.describe()] if self.cache else []))

    @property
    def unsaid(self) -> tuple[str, ...]:
        """The choices that a mistake would look like and that the target does not say, as `--accept` names them."""
        turned = self.sequence_first and not says_sequence_first(self.target)
        hidden = self.mask.polarity == "ignore" and not says_ignore(self.target, self.arguments)
        added = self.returns == "addend"
        choices = {"sequence-first": turned, "ignore": hidden, "addend": added}
        return tuple(name for name, is_unsaid in choices.items() if is_unsaid)

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The function of the component, as an adapter has it."""
        contract = self.contract
        names = [name for name, spec in contract.inputs.items() if not spec.optional]
        required = [name for name in drop_script(contract.attributes) if name not in contract.optional]
        taken = {*self.construction.list_roles(), *map(str, self.arguments.call.values())}
        taken |= {"pad_id"} if "words" in taken else set()
        taken |= {"base"} if self.arguments.tables else set()
        optional: dict[str, Any] = dict.fromkeys(contract.masks)
        optional |= {name: default for name, default in _DEFAULTS.items() if name in taken - {*required}}
        required += ["params"] if contract.takes_params else []
        positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        state = ["state"] if contract.session else []
        optional |= dict.fromkeys(state)
        masks = [inspect.Parameter(name, positional, default=None) for name in (*contract.masks, *state)]
        apart = [inspect.Parameter(name, keyword) for name in required]
        after = {*contract.masks, *state}
        apart += [inspect.Parameter(n, keyword, default=d) for n, d in optional.items() if n not in after]
        signature = inspect.Signature([*(inspect.Parameter(name, positional) for name in names), *masks, *apart])

        @functools.wraps(self.target.thing, assigned=(), updated=())
        def function(*given: Any, **named: Any) -> Any:
            return self.run({**optional, **signature.bind(*given, **named).arguments})

        function.__name__ = contract.component
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def run(self, call: dict[str, Any]) -> Any:
        """Call the target with the arguments of a call; NotImplementedError for one that it does not take."""
        if self.cache:
            return run_session(self, self.cache, call)
        return self._run_in_parts(call) if self.equal_widths else self.run_once(call)

    def _run_in_parts(self, call: dict[str, Any]) -> Any:
        """Call the target with parts of the values that are as wide as the keys, the last one padded with zeros."""
        value, width = call["value"], call["key"].shape[-1]
        if not width or value.shape[-1] == width:
            return self.run_once(call)
        library = find_array_module(value)
        padding = [library.zeros_like(value[..., :1])] * (-value.shape[-1] % width)
        wide = library.concatenate([value, *padding], -1)
        parts = (wide[..., start : start + width] for start in range(0, wide.shape[-1], width))
        outputs = [find_output(self.run_once({**call, "value": part})) for part in parts]
        return library.concatenate(outputs, -1)[..., : value.shape[-1]]

    # Its text

    def write(self, head: str, detour: str = "", others: Sequence[Wiring] = ()) -> str:
        """Return the adapter file, which finds the class in the folder `detour` as seen from its own."""
        every = (self, *others)
        name = f"own_{self.target.name}" if self.target.name in INFERRED_FUNCTIONS else self.target.name
        made = [one for wiring in every for one in (*wiring.construction.list_made(), *list_made(wiring.cache))]
        first, own = _write_imports(self.target, name, [one.kind for one in made], detour)
        caches = ["Cache"] if any(wiring.cache for wiring in every) else []
        ours = ", ".join([*caches, *(["Made"] if made else []), "adapt"])
        lines = [f'"""{head}"""', "", *first, f"from goldformer.adapters.inference import {ours}", *own]
        lines += ["", f'ARRAYS = "{self.target.arrays}"']
        lines += [f"CONVENTIONS = {_show(declared)}"] if (declared := _declare(every)) else []
        lines += [f"DTYPES = {_show(list(self.dtypes))}"] if self.dtypes else []
        return "\n".join([*lines, *(line for wiring in every for line in ("", *wiring._write_call(name)))]) + "\n"

    def _write_call(self, name: str) -> list[str]:
        """Return the lines that make the function of the component."""
        given = {"build": self.construction.arguments, "call": self.arguments.call}
        given["params"] = leave_out_companions(self.naming)
        parts = [f'{name}, "{self.component}"', *(f"{n}={_show(v, '    ')}" for n, v in given.items() if v)]
        parts += [", ".join(f"{n}={_show(v)}" for n, v in self.list_choices().items())]
        parts += [f"cache={_show(self.cache)}"] if self.cache else []
        return [f"{self.component} = adapt(", *(f"    {p}," for p in parts if p), ")"]

    def list_choices(self) -> dict[str, Any]:
        """Return the choices of layouts that are no defaults, as `adapt` takes them."""
        form, table, naming = self.mask, self.arguments.table_form or TableForm("halves"), self.naming
        chosen: dict[str, Any] = {
            "mask": form.shape,
            "polarity": form.polarity,
            "always": form.always,
            "tables": table.columns,
        }
        chosen |= {"table_axes": table.axes, "returns": self.returns, "sequence_first": self.sequence_first}
        chosen |= {
            "axes": self.axes,
            "equal_widths": self.equal_widths,
            **{name: getattr(naming, name) for name in _LAYOUTS},
        }
        defaults = inspect.signature(adapt).parameters
        return {n: v for n, v in chosen.items() if v != (defaults[n].default if n in defaults else _LAYOUTS[n])}


#: The layouts of parameters, by the fields of a naming, with their defaults.
_LAYOUTS: Final[Mapping[str, Any]] = {
    one.name: one.default for one in fields(Naming) if one.name not in ("names", "conventions")
}


def adapt(
    thing: Any,
    component: str,
    *,
    build: Mapping[str, Any] = MappingProxyType({}),
    call: Mapping[str, Any] = MappingProxyType({}),
    params: layouts.Names = MappingProxyType({}),
    mask: MaskShape = "absent",
    polarity: Polarity = "keep",
    always: bool = False,
    tables: str = "halves",
    table_axes: int = 2,
    returns: Returns = "as_it_is",
    sequence_first: bool = False,
    axes: int = 0,
    equal_widths: bool = False,
    cache: Cache | None = None,
    **layout: Any,
) -> Callable[..., Any]:
    """Return the function of a component that calls a class or a function, as `goldformer infer` writes it.

    `build` says what each argument of the constructor is: a size of the call, such as "width" or "heads", a constant,
    or `Made`, an object that is built itself. `call` says it of the call: an input, a mask or an attribute of the
    component, or a constant. `params` has the name of each parameter as `map_state` takes them. `mask` and `polarity`
    are the form of the masks and what True means in them ("keep", "ignore", "added"), and `always` that the call needs
    one. `cache` says how the class keeps keys and values between calls. `layout` says how parameters are stored, such
    as order="qkv" for a fused projection.
    """
    spec = load_spec()
    if component not in spec.contracts:
        raise AdapterError(f"adapt: {component!r} is no component; components are {', '.join(spec.contracts)}")
    if unknown := [name for name in layout if name not in _LAYOUTS]:
        raise AdapterError(f"adapt: no choice is called {unknown[0]!r}; choices are {', '.join(_LAYOUTS)}")
    kind = as_module(thing) if inspect.isclass(thing) else thing
    arguments = ForwardArguments(call, TableForm(tables, table_axes))
    wiring = Wiring(Target(kind, thing.__name__, ""), spec.contracts[component], arguments, Construction(build))
    naming, form = Naming(params, **layout), MaskForm(mask, polarity, always)
    chosen = replace(wiring, naming=naming, mask=form, returns=returns, sequence_first=sequence_first, axes=axes)
    return replace(chosen, equal_widths=equal_widths, cache=cache).function


def load_wiring(wiring: Wiring, spec: Spec, *others: Wiring) -> Adapter:
    """Return the adapter that a wiring is, with those of other components that one class is."""
    every = (wiring, *others)
    functions = SimpleNamespace(**{one.component: one.function for one in every})
    adapter = Adapter.from_trusted(functions, wiring.target.name, spec, arrays=wiring.target.arrays)
    library = LIBRARIES["numpy"] if is_made_here(wiring.target.thing) else adapter
    dtypes = wiring.dtypes or library.dtypes
    return replace(adapter, conventions=_declare(every), devices=library.devices, dtypes=dtypes)


def _declare(wirings: Iterable[Wiring]) -> dict[str, str]:
    """Return the conventions of wirings of one class."""
    return {name: option for one in wirings for name, option in one.declared.items()}


def switches_mask(wiring: Wiring, inputs: Mapping[str, Array]) -> bool:
    """Return True if a wiring sets the switch of the call in the place of a mask of these inputs."""
    switched = (names for names in list_masks(wiring.contract) if names[0] != "memory_mask")
    mask, queries, keys = (inputs.get(name) for name in next(switched))
    return queries is not None and keys is not None and is_switched(mask, queries, keys)


# The file


def _write_imports(target: Target, local: str, kinds: Sequence[type], detour: str) -> tuple[list[str], list[str]]:
    """Return the lines that import the class and what it is built of, as those before and after other imports."""
    names, apart = {target.name: local}, list[str]()
    for kind in dict.fromkeys(kinds):
        if target.has(kind):
            names[kind.__name__] = kind.__name__
        elif kind is not dict:
            apart.append(f"from {kind.__module__} import {kind.__name__}")
    here = 'Path(__file__).resolve().parent / "{}"'
    if target.file and not target.is_importable:
        place = here.format(f"{detour}/{target.file.name}" if detour else target.file.name)
        taken = [f"{ours} = own.{theirs}" for theirs, ours in names.items()]
        before = ["from pathlib import Path", "from goldformer.adapters.find import import_file"]
        return before, ["", f"own = import_file({place})", *taken, *(f"{line}  # noqa: E402" for line in apart)]
    listed = ", ".join(theirs if theirs == ours else f"{theirs} as {ours}" for theirs, ours in names.items())
    own = [f"{target.import_line.rpartition(' import ')[0]} import {listed}", *apart]
    if not detour:
        return [], own
    path = f"sys.path.insert(0, str({here.format(detour)}))"
    return ["import sys", "from pathlib import Path"], ["", path, *(f"{line}  # noqa: E402" for line in own)]


def _show(value: Any, indent: str = "") -> str:
    """Return the text of a value, a mapping in lines of its own if it is long."""
    if isinstance(value, Made):
        return f"Made({value.kind.__name__}, {_show(value.arguments, indent)})"
    if isinstance(value, Cache):
        chosen = (
            (one.name, getattr(value, one.name)) for one in fields(value) if getattr(value, one.name) != one.default
        )
        return f"Cache({', '.join(f'{name}={_show(one, indent)}' for name, one in chosen)})"
    if isinstance(value, Mapping):
        inner = f"{indent}    "
        items = [f"{_show(name)}: {_show(one, inner)}" for name, one in value.items()]
        line = f"{{{', '.join(items)}}}"
        lines = "".join(f"{inner}{item},\n" for item in items)
        return line if len(line) <= _LINE - 15 else f"{{\n{lines}{indent}}}"
    if isinstance(value, tuple | list):
        start, end = "()" if isinstance(value, tuple) else "[]"
        return f"{start}{', '.join(map(_show, value))}{end}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# What was chosen, in words


def _describe_layout(wiring: Wiring) -> Iterator[str]:
    naming = wiring.naming
    if naming.order:
        yield f"fused projection: {', '.join(naming.order)}, {'head by head' if naming.per_head else 'whole blocks'}"
    if naming.branches:
        form = "columns in turn" if naming.in_turn else "whole blocks"
        yield f"fused projection: {naming.branches.replace('_', ', ')}, {form}"
    gate, up = (next((str(p) for n, p in naming.names.items() if n.endswith(name)), "") for name in ("w_gate", "w_up"))
    said = {
        # Names such as w1 and w3 say an order, and the code has the other one.
        f"{gate} is the gate": gate > up and "gate" not in gate.lower(),
        "each head has weights of its own": naming.head_list,
        "its projections have an axis for the heads": naming.stacked,
        "its own matrices are (out, in)": naming.turned,
        "sequence first: (seq, batch, …)": wiring.sequence_first,
        "its result is added to x": wiring.returns in ("addend", "of_ids"),
        "it takes ids, of which it reads the shape": wiring.returns == "of_ids",
        "its logits are (batch·seq, vocab)": wiring.returns == "flat",
        f"arrays of {wiring.axes} axes": wiring.axes,
        "values as wide as keys: others are padded, or passed in parts": wiring.equal_widths,
        f"it works in {', '.join(wiring.dtypes)}, not in float64": wiring.dtypes,
    }
    yield from (text for text, holds in said.items() if holds)


def _describe_mask(wiring: Wiring) -> Iterator[str]:
    form, switch = wiring.mask, wiring.arguments.switch
    if form.shape == "causal":
        yield "mask: none, it always hides the future"
        return
    if form.shape != "absent" and wiring.arguments.all_masks:
        meaning = {"keep": "True = may attend", "ignore": "True = ignore", "added": "added to the scores"}
        yield f"mask: {_SHAPES[form.shape]}" + ("" if form.shape == "lengths" else f", {meaning[form.polarity]}")
    if switch:
        yield f"{switch} of the call: True where the mask is causal, with as many queries as keys"
    for name in () if form.is_split or form.shape == "absent" else wiring.arguments.paddings.values():
        yield f"{name} of the call: not used, all masks go to the other argument"


_SHAPES: Final = {
    "any": "as it comes", "four_axes": "(batch, heads, q_seq, kv_seq)", "whole": "of the size of the scores",
    "flat": "(batch·heads, q_seq, kv_seq)", "no_heads": "(batch, q_seq, kv_seq)", "keys": "(batch, kv_seq)",
    "lengths": "(batch,), numbers of keys", "split": "one of keys and one of positions",
    "causal_keys": "(batch, kv_seq), next to the causal one that it makes itself",
    "split_rows": "one of keys and one of (q_seq, kv_seq)",
}  # fmt: skip
