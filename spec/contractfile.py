"""Files of contracts: reads contracts/*.yaml, each contract after those it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from goldformer.spec.edition import EditionName
from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.model import ArraySpec, AttributeEntry, AttributeSpec, Contract, Layers
from goldformer.spec.sessions import AFTER, CALLS, Session
from goldformer.spec.shapes import LEAD, Axis, Shape
from goldformer.spec.strict import ClauseId, Items, Name, Option, StrictModel, Text
from goldformer.spec.tables import Convention
from goldformer.spec.yamlfile import Field as Where
from goldformer.spec.yamlfile import YamlFile


class ArrayEntry(StrictModel):
    """An array argument or output; `shape` or `broadcast` is required."""

    kind: Literal["float", "bool", "ids"]
    shape: Items[str | int] | None = None
    broadcast: Items[str | int] | None = None
    optional: bool = False
    below: Name | None = None
    blind: Text | None = None
    only_with: dict[Name, Items[Option]] = {}
    covers: Items[Name] = ()
    causal_with: dict[Name, Items[Option]] = {}
    only_causal_with: dict[Name, Items[Option]] = {}
    conventions: Items[Name] = ()


class BlockEntry(StrictModel):
    """The parameters of another component, under a prefix; with `repeat`, an attribute, once for each layer."""

    component: Name
    sizes: dict[Name, Name] = {}
    repeat: Name | None = None
    only_with: dict[Name, Items[Option]] = {}


class ContractFile(StrictModel):
    """The schema of a contract."""

    component: Name
    edition: EditionName | None = None
    title: Text
    formula: Text
    depends_on: Items[Name]
    inputs: dict[Name, ArrayEntry] = {}
    params: dict[Name, ArrayEntry] = {}
    blocks: dict[Name, BlockEntry] = {}
    attributes: dict[Name, AttributeEntry] = {}
    outputs: Annotated[dict[Name, ArrayEntry], Field(min_length=1)]
    flow: Items[Name] = ()
    free: Items[str] = ()
    differentiable: bool = True
    conventions: Items[Name] = ()
    clauses: Items[ClauseId] = ()
    computed_in_at_least: Literal["float32", "float64"] | None = None
    session: Session | None = None


def read_contracts(
    files: Iterable[YamlFile], conventions: Mapping[str, Convention], editions: Sequence[str]
) -> dict[str, Contract]:
    """Read all contracts in dependency order; SpecError for a bad shape, an unknown name or a cycle.

    A contract that names no edition is of the first.
    """
    parsed: dict[str, tuple[YamlFile, Contract]] = {}
    problems: list[Problem] = []
    for file in files:
        contract = _build(file, editions[0])
        if contract.component != file.path.stem:
            problems.append(file.problem(("component",), f"is {contract.component!r} in a file named {file.path.name}"))
        for names, known, field, home in (
            (contract.conventions, conventions, "conventions", "in conventions.yaml"),
            (
                [n for a in contract.inputs.values() for n in a.conventions],
                contract.conventions,
                "inputs",
                "among them",
            ),
            (contract.flow, contract.outputs, "flow", "among the outputs"),
            ([contract.edition], editions, "edition", f"in version.json, which has {' and '.join(editions)}"),
        ):
            problems += [file.problem((field,), f"{n!r} is not {home}") for n in names if n not in known]
        parsed[contract.component] = (file, contract)
    for file, contract in parsed.values():
        problems += [
            file.problem(("depends_on",), f"{name!r} has no contract")
            for name in contract.depends_on
            if name not in parsed
        ]
        problems += _list_unknown_options(file, contract, conventions)
    if problems:
        raise SpecError(problems)
    ordered: dict[str, Contract] = {}
    while len(ordered) < len(parsed):
        ready = [c for _, c in parsed.values() if c.component not in ordered and set(c.depends_on) <= set(ordered)]
        if not ready:
            file = next(file for name, (file, _) in parsed.items() if name in _find_reachable(name, parsed))
            raise SpecError([file.problem(("depends_on",), "runs in a circle")])
        for contract in sorted(ready, key=lambda c: c.component):
            file, _ = parsed[contract.component]
            ordered[contract.component] = _add_blocks(file, contract, ordered)
    return ordered


def _find_reachable(start: str, parsed: Mapping[str, tuple[YamlFile, Contract]]) -> set[str]:
    """Return all components that one depends on, directly or not."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        found = set(parsed[waiting.pop()][1].depends_on) - reached
        reached |= found
        waiting += found
    return reached


def _build(file: YamlFile, default: str) -> Contract:
    model = file.parse(ContractFile)
    contract = Contract(
        model.component, model.title, model.formula, model.depends_on,
        _read_arrays(file, "inputs", model.inputs), _read_arrays(file, "params", model.params),
        {name: AttributeSpec(name=name, **dict(a)) for name, a in model.attributes.items()},
        _read_arrays(file, "outputs", model.outputs),
        model.flow or tuple(model.outputs), model.conventions, model.computed_in_at_least,
        model.edition or default, clauses=model.clauses, free=model.free, differentiable=model.differentiable,
        session=model.session,
    )  # fmt: skip
    _refuse_unknown_sizes(file, contract)
    _refuse_unknown_axes(file, contract)
    _check_session(file, contract)
    return contract


def _check_session(file: YamlFile, contract: Contract) -> None:
    """Refuse a session that cuts no input or has no script, and an input that it cannot cut."""
    if contract.session is None:
        return
    for name, optional in ((CALLS, False), (AFTER, True)):
        attribute = contract.attributes.get(name)
        if attribute is None or (attribute.kind, attribute.optional) != ("ints", optional):
            written = "{kind: ints, optional: true}" if optional else "{kind: ints}"
            raise SpecError([file.problem(("session",), f"has no script: write the attribute {name}: {written}")])
    cut = [name for name, spec in contract.inputs.items() if contract.session.find_axis(spec.shape) is not None]
    if not cut:
        message = f"{contract.session.axis!r} is no axis of an input: name the axis along which tokens lie"
        raise SpecError([file.problem(("session", "axis"), message)])
    if unknown := [name for name in contract.session.so_far if name not in cut]:
        message = f"{unknown[0]!r} is no input with the axis {contract.session.axis}: write some of {', '.join(cut)}"
        raise SpecError([file.problem(("session", "so_far"), message)])


def _list_unknown_options(
    file: YamlFile, contract: Contract, conventions: Mapping[str, Convention]
) -> Iterator[Problem]:
    """Yield a problem for each array that depends on an option that the contract does not have."""
    model = file.parse(ContractFile)
    entries: dict[Where, Mapping[str, Iterable[str]]] = {
        ("params", name, "only_with"): entry.only_with for name, entry in model.params.items()
    }
    entries |= {("blocks", name, "only_with"): entry.only_with for name, entry in model.blocks.items()}
    entries |= {("attributes", name, "needed_under"): entry.needed_under for name, entry in model.attributes.items()}
    entries |= {("inputs", name, "causal_with"): entry.causal_with for name, entry in model.inputs.items()}
    entries |= {("inputs", name, "only_causal_with"): entry.only_causal_with for name, entry in model.inputs.items()}
    for where, depends in entries.items():
        for name, options in depends.items():
            known = conventions[name].options if name in contract.conventions else ()
            for option in options:
                if option not in known:
                    message = f"{name}: {option} is no option of the conventions of {contract.component}"
                    yield file.problem(where, message)


def _refuse_unknown_axes(file: YamlFile, contract: Contract) -> None:
    """Refuse a free axis that no output has."""
    shapes = [spec.shape for spec in contract.outputs.values()]
    known = dict.fromkeys(
        [*(LEAD for shape in shapes if shape.lead), *(str(a) for shape in shapes for a in shape.axes)]
    )
    if unknown := [axis for axis in contract.free if axis not in known]:
        message = f"{unknown[0]!r} is no axis of an output: write some of {', '.join(known)}"
        raise SpecError([file.problem(("free",), message)])


def _refuse_unknown_sizes(file: YamlFile, contract: Contract) -> None:
    """Refuse a size of a mask, an output or a limit that no argument gives."""
    arguments = [spec for spec in (*contract.inputs.values(), *contract.params.values()) if not spec.broadcast]
    given = {symbol for spec in arguments for symbol in spec.shape.symbols}
    given |= {attribute.size for attribute in contract.attributes.values() if attribute.size}
    for group, specs in (("inputs", contract.inputs), ("params", contract.params), ("outputs", contract.outputs)):
        for name, spec in specs.items():
            if unknown := [symbol for symbol in spec.shape.symbols if symbol not in given]:
                message = f"no argument gives the size {unknown[0]}"
                raise SpecError([file.problem((group, name), message)])
    for name, attribute in contract.attributes.items():
        divisor = attribute.multiple_of
        if isinstance(divisor, str) and divisor not in contract.attributes:
            message = f"{divisor} is no attribute: write one of {', '.join(contract.attributes)}, or a number"
            raise SpecError([file.problem(("attributes", name, "multiple_of"), message)])
        limit = attribute.at_most
        if limit is None or limit in contract.attributes:
            continue
        try:
            unknown = [symbol for symbol in Axis.parse(limit).symbols if symbol not in given]
        except ValueError as error:
            raise SpecError([file.problem(("attributes", name, "at_most"), str(error))]) from error
        if unknown:
            known = ", ".join(sorted({*contract.attributes, *given}))
            message = f"{unknown[0]} is no attribute and no size of an argument: write one of {known}, or a product"
            raise SpecError([file.problem(("attributes", name, "at_most"), message)])


def _add_blocks(file: YamlFile, contract: Contract, known: Mapping[str, Contract]) -> Contract:
    """Add the parameters of the components it is built of, under their prefixes and with its own sizes."""
    blocks = file.parse(ContractFile).blocks
    params, layers = dict(contract.params), []
    for prefix, block in blocks.items():
        if block.component not in known:
            message = f"{block.component!r} is not among what {contract.component} depends on"
            raise SpecError([file.problem(("blocks", prefix), message)])
        inner = {
            name: replace(spec, shape=spec.shape.rename(block.sizes), only_with={**spec.only_with, **block.only_with})
            for name, spec in known[block.component].params.items()
        }
        if block.repeat is None:
            params |= {f"{prefix}.{name}": replace(spec, name=f"{prefix}.{name}") for name, spec in inner.items()}
        elif block.repeat not in contract.attributes:
            raise SpecError([file.problem(("blocks", prefix, "repeat"), f"{block.repeat!r} is no attribute")])
        else:
            layers.append(Layers(prefix, block.repeat, inner))
    return replace(contract, params=params, layers=tuple(layers))


def _read_arrays(file: YamlFile, group: str, models: Mapping[str, ArrayEntry]) -> dict[str, ArraySpec]:
    specs = {}
    for name, model in models.items():
        where: Where = (group, name)
        if (model.shape is None) == (model.broadcast is None):
            raise SpecError([file.problem(where, "needs either `shape` or `broadcast`")])
        try:
            shape = Shape.parse(model.shape or model.broadcast or ())
        except ValueError as error:
            raise SpecError([file.problem(where, str(error))]) from error
        flags = dict(model) | {"shape": shape, "broadcast": model.broadcast is not None}
        specs[name] = ArraySpec(name, **flags)
    return specs
