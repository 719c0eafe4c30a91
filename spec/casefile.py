"""Files of cases: builds recipes, checks shapes against the contract, makes error cases from their base."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from goldformer.spec import case_schema as schema
from goldformer.spec.call import check_call
from goldformer.spec.draw import Argument, Dyadic, Fill, Recipe, Uniform, Values, below, check
from goldformer.spec.errors import Problem, Refused, SpecError
from goldformer.spec.goldenfile import StoredGolden, read_golden
from goldformer.spec.laws import law_of, unfit
from goldformer.spec.model import Array, ArraySpec, Case, Contract, Wanted
from goldformer.spec.shapes import Binder, ContractViolation
from goldformer.spec.strict import Location, is_part
from goldformer.spec.tables import Citation, Convention
from goldformer.spec.yamlfile import Field, YamlFile

#: The fields that decide a golden value; a title may change without a new derivation.
DECISIVE = ("sizes", "attributes", "inputs", "params", "cotangent", "convention", "only_with", "expect")
#: The most numbers that an array may have: 1 GiB of float64, and 26 times the largest array of the spec.
MOST_NUMBERS = 2**27
#: The most axes that an array may have: those of NumPy 1.
MOST_AXES = 32
#: The most layers that a stack may have. Each has parameters with names of their own.
MOST_LAYERS = 1000


#: In a gradient case this name stands for every floating-point argument.
_ALL = "gradients"

#: The convention of code that has one width for inputs, all heads together and outputs, and the number of axes of each
#: projection that have it: heads of keys that queries share are narrower.
_WIDTHS: Final = "projection_widths"
_AXES_OF_ONE_WIDTH: Final[Mapping[str, int]] = {"w_q": 2, "w_k": 1, "w_v": 1, "w_qkv": 1, "w_o": 2}

#: The axes along which a sequence is padded.
_ROWS = ("seq", "q_seq", "source_seq")


def read_cases(
    file: YamlFile,
    contracts: Mapping[str, Contract],
    conventions: Mapping[str, Convention],
    golden: StoredGolden | None = None,
    *,
    underived: bool,
) -> list[Case]:
    """Return the cases of one file, checked against their contract; SpecError lists every case that is refused.

    `golden` is what programs wrote of the cases of a file of the spec. A file outside the spec may have any name and
    hold that itself. With `underived`, golden values may be missing or out of date: `goldformer derive` starts so.
    """
    model = file.parse(schema.CasesFile)
    if model.component not in contracts:
        raise SpecError([file.problem(("component",), f"{model.component!r} has no contract")])
    problems: list[Problem] = []
    if golden is None:
        golden = StoredGolden(model.golden, lambda: file, ("golden",), "remove it, and it is derived again")
        problems += _list_stray_entries(golden, [case.id for case in model.cases], file)
    elif model.component != file.path.stem:
        message = f"is {model.component!r} in a file named {file.path.name}"
        raise SpecError([file.problem(("component",), message)])
    elif model.golden:
        message = f"stands in golden/{model.component}.json: take it out here, and run goldformer derive"
        raise SpecError([file.problem(("golden",), message)])
    contract = contracts[model.component]
    built: dict[str, Case] = {}
    # Error cases come second: each changes one thing in another case.
    order = sorted(enumerate(model.cases), key=lambda item: item[1].base is not None)
    for index, case in order:
        where: Field = ("cases", index)
        try:
            if case.id in built:
                raise Refused(("id",), f"{case.id!r} is taken, see line {built[case.id].place.line}")
            _refuse_unknown_options(case, contract, conventions)
            made = _build(case, contract, conventions, Location(file.path, file.line((*where, "id"))), built)
            digest = derivation_digest(file.data["cases"][index], contract, conventions)
            built[case.id] = _add_golden(made, contract, golden, digest, underived=underived)
        except Refused as refused:
            problems.append(file.problem((*where, *refused.where), f"{case.id}: {refused}"))
        except SpecError as error:
            problems += error.problems
    # If a case is refused, perhaps its id was changed: do not report its entry too.
    if not problems and not underived:
        problems += _list_stray_entries(golden, [case.id for case in model.cases], file)
    if problems:
        raise SpecError(problems)
    return [built[case.id] for case in model.cases]


def _list_stray_entries(golden: StoredGolden, ids: list[str], file: YamlFile) -> Iterable[Problem]:
    for id_ in golden.entries.keys() - set(ids):
        message = f"{id_!r} is no case of {file.path.name}: {golden.remedy}"
        yield golden.problem(id_, message)


def derivation_digest(raw: Mapping[str, Any], contract: Contract, conventions: Mapping[str, Convention]) -> str:
    """Return a digest of everything in a case that decides its golden values."""
    decisive = {key: raw[key] for key in DECISIVE if key in raw}
    decisive["component"] = contract.component
    # Drawn numbers depend on the names and shapes of the arguments too.
    names = schema.list_names(raw.get("convention", ()))
    options = raw.get("only_with", {})
    params = _find_drawn(raw.get("attributes", {}), options, names, contract, conventions)
    arguments = {**contract.inputs, **params}
    decisive["arguments"] = {name: [spec.kind, str(spec.shape), spec.optional] for name, spec in arguments.items()}
    if len(names) == 1 and names[0] in conventions:
        decisive["options"] = sorted(conventions[names[0]].options)
    elif names:
        decisive["options"] = {name: sorted(conventions[name].options) for name in names if name in conventions}
    dependent = {n: spec.only_with for n, spec in params.items() if not spec.only_with.keys().isdisjoint(names)}
    if dependent:
        decisive["only_with_of_params"] = dependent
    text = json.dumps(decisive, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_drawn(
    attributes: Mapping[str, Any],
    only_with: Mapping[str, str],
    names: Collection[str],
    contract: Contract,
    conventions: Mapping[str, Convention],
) -> Mapping[str, ArraySpec]:
    """Return the parameters that exist under the options of a case, the default where it names no option.

    `names` are the conventions under whose every option the case is derived.
    """
    deciding = contract.conventions_of_params - set(names)
    options = {name: only_with.get(name, conventions[name].default) for name in deciding}
    return contract.params_under(attributes, options)


def _build(
    model: schema.CaseModel,
    contract: Contract,
    conventions: Mapping[str, Convention],
    place: Location,
    built: Mapping[str, Case],
) -> Case:
    source = None if model.source == "derived" else model.source
    if isinstance(model.expect, schema.ErrorModel):
        return _build_error(model, model.expect.error, contract, place, source, built)
    if model.base is not None or model.change is not None:
        raise Refused(("base",), "only an error case has a base and a change")
    _check_layers(model.attributes, contract, ("attributes",))
    lead, sizes = _read_sizes(model, contract)
    inputs = _make_arguments(model.inputs, contract.inputs, sizes, lead, "inputs")
    param_specs = contract.params_for(model.attributes)
    names = model.convention
    drawn = _find_drawn(model.attributes, model.only_with, names, contract, conventions)
    params = _make_arguments(_expand_params(model.params, drawn), param_specs, sizes, lead, "params")
    case = Case(
        id=model.id, component=contract.component, title=model.title, place=place, clauses=model.clauses,
        source=source, meant_for=model.meant_for, sizes=sizes, lead=lead, equal_sizes=model.equal_sizes,
        attributes=model.attributes, inputs=inputs, params=params,
        conventions={name: tuple(conventions[name].options) for name in names},
        only_with=model.only_with, printed=model.printed,
        dependent={name: spec for name, spec in param_specs.items() if spec.only_with},
        later_tokens=contract.later_tokens,
    )  # fmt: skip
    binder = _bind(case, contract)
    for name, size in binder.sizes.items():
        if sizes.get(name, size) != size:
            raise Refused(("sizes", name), f"is {sizes[name]}, but the arrays give {size}")
    case = replace(case, sizes=dict(binder.sizes), lead=binder.lead or ())
    if model.cotangent is not None:
        first = contract.outputs[contract.first_output]
        case = replace(case, cotangent=_make_argument(model.cotangent, first, binder.sizes, case.lead, ("cotangent",)))
    case = replace(case, expect=_read_expectation(model.expect, case, contract))
    if not case.shape_only:
        case = replace(case, only_with={**_list_silent_defaults(case, contract, conventions), **case.only_with})
    if _WIDTHS in contract.conventions and _has_several_widths(params):
        case = replace(case, only_with={_WIDTHS: conventions[_WIDTHS].default, **case.only_with})
    _check_decimals(case)
    return _check_blind(replace(case, blind=model.blind))


def _list_silent_defaults(case: Case, contract: Contract, conventions: Mapping[str, Convention]) -> dict[str, str]:
    """Return the default options of the conventions that a case does not name: its values are derived under them.

    The parameters and the mask of a case show the options under which they exist, and some conventions matter only for
    some inputs.
    """
    shown = contract.conventions_of_params | contract.conventions_of_masks | {*case.conventions}
    of_inputs = {name: {*spec.conventions} for name, spec in contract.inputs.items()}
    given = set[str]().union(*(names for name, names in of_inputs.items() if name in case.inputs))
    shown |= set[str]().union(*of_inputs.values()) - given
    return {
        name: conventions[name].default
        for name in contract.conventions
        if name not in shown and not conventions[name].on_some_inputs
    }


def _has_several_widths(params: Mapping[str, Argument]) -> bool:
    """Return True if the inputs, all heads together and the outputs of the attentions of a call differ in width."""
    of_one = ((arg, _AXES_OF_ONE_WIDTH.get(name.rpartition(".")[2], 0)) for name, arg in params.items())
    return len({size for argument, axes in of_one for size in argument.shape[:axes]}) > 1


def _check_decimals(case: Case) -> None:
    """Refuse decimals next to numbers that are drawn with all bits: these are read as themselves, those are rounded."""
    if not case.has_all_bits:
        return
    cotangent = {"cotangent": case.cotangent} if case.cotangent is not None else {}
    for group, arguments in (("inputs", case.inputs), ("params", case.params), ("", cotangent)):
        for name, argument in arguments.items():
            written = argument.written if argument.written is not None else getattr(argument.made_of, "fill", 0.0)
            if np.any(np.float32(written) != written):
                where = (group, name) if group else (name,)
                raise Refused(where, "has decimals beside numbers drawn with all bits: write binary ones such as 0.25")


def _check_layers(attributes: Mapping[str, Any], contract: Contract, where: Field) -> None:
    """Refuse a stack with more than MOST_LAYERS layers: naming their parameters would never end."""
    for stack in contract.layers:
        count = attributes.get(stack.count, 0)
        if not count <= MOST_LAYERS:
            raise Refused((*where, stack.count), f"is {count}: write at most {MOST_LAYERS}")


def _check_blind(case: Case) -> Case:
    for part in (part for blind in case.blind for part in blind.to):
        if not any(is_part(part, name) for name in case.subjects):
            message = f"{part!r} is not among the case's arrays and outputs, nor a part of their names"
            raise Refused(("blind",), message)
    return case


def _make_shaped(argument: Argument, name: str) -> Array:
    """Return an array of the right shape and kind, with zeros for drawn numbers: a large model has millions."""
    if isinstance(argument.made_of, Dyadic | Uniform | Fill):
        return np.broadcast_to(np.float64(0), argument.shape)
    return argument.build(name)


def _check_call(case: Case, contract: Contract) -> Binder:
    inputs, params = (
        {name: _make_shaped(argument, name) for name, argument in g.items()} for g in (case.inputs, case.params)
    )
    for name, attribute in contract.attributes.items():
        if attribute.is_missing(case.attributes, case.only_with):
            raise ContractViolation(f"{name} is missing, though {attribute.needed_with} is there", (name,))
    return check_call(contract, inputs, params, case.attributes)


def _bind(case: Case, contract: Contract) -> Binder:
    try:
        return _check_call(case, contract)
    except ContractViolation as violation:
        raise Refused(("inputs",), f"contradicts the contract: {violation}") from violation


def _read_sizes(model: schema.CaseModel, contract: Contract) -> tuple[tuple[int, ...], dict[str, int]]:
    sizes: dict[str, int] = {}
    lead: tuple[int, ...] = ()
    arrays = (*contract.inputs.values(), *contract.params_for(model.attributes).values())
    known = {symbol for spec in arrays for symbol in spec.shape.symbols}
    known |= {a.size for a in contract.attributes.values() if a.size}
    for name, size in model.sizes.items():
        if isinstance(size, list):
            if name != "lead":
                raise Refused(("sizes", name), "only `lead`, the axes that ... stands for, is a list")
            lead = tuple(size)
        elif name not in known:
            raise Refused(("sizes", name), f"is no size of {contract.component}, which has {', '.join(sorted(known))}")
        else:
            sizes[name] = size
    return lead, sizes


def _expand_params(
    params: schema.AllParamsModel | schema.AllUniformModel | Mapping[str, Recipe], specs: Mapping[str, ArraySpec]
) -> Mapping[str, Recipe]:
    """Return the recipe of each parameter, with one for all by the names of those that a call has."""
    if not isinstance(params, schema.AllParamsModel | schema.AllUniformModel):
        return params
    kind = Dyadic if isinstance(params, schema.AllParamsModel) else Uniform
    recipe = kind.model_validate({name: getattr(params, name) for name in kind.model_fields})
    other = recipe if params.gammas is None else recipe.model_copy(update=dict(params.gammas))
    drawn = [name for name, spec in specs.items() if params.biases or not spec.optional]
    together = {name: other if name.rpartition(".")[2] == "gamma" else recipe for name in drawn}
    return together | params.but


def _make_arguments(
    recipes: Mapping[str, Recipe],
    specs: Mapping[str, ArraySpec],
    sizes: Mapping[str, int],
    lead: tuple[int, ...],
    group: str,
) -> dict[str, Argument]:
    arguments = {}
    for name, recipe in recipes.items():
        if name not in specs:
            raise Refused((group, name), f"is not in the contract, which has {', '.join(specs) or 'none'}")
        if (like := getattr(recipe, "like", None)) is not None and like not in recipes:
            raise Refused((group, name), f"is drawn like {like}, which is not among {', '.join(recipes)}")
        arguments[name] = _make_argument(recipe, specs[name], sizes, lead, (group, name))
    return arguments


def _make_argument(
    recipe: Recipe, spec: ArraySpec, sizes: Mapping[str, int], lead: tuple[int, ...], where: Field
) -> Argument:
    """Return the argument of a recipe; Refused at `where` if no array follows from it."""
    try:
        argument = _place(recipe, spec, sizes, lead)
    except KeyError as error:
        raise Refused(where, f"needs the size {error}: add it to sizes") from error
    except ValueError as error:
        raise Refused(where, str(error)) from error
    except OverflowError as error:
        raise Refused(where, "has a number beyond float64 or int64: write a smaller one") from error
    if len(argument.shape) > MOST_AXES:
        raise Refused(where, f"has {len(argument.shape)} axes: write at most {MOST_AXES}")
    if any(size < 0 for size in argument.shape):
        raise Refused(where, f"has the shape {list(argument.shape)}: write lengths of 0 or more")
    if math.prod(size for size in argument.shape if size) > MOST_NUMBERS:
        raise Refused(
            where, f"has the shape {list(argument.shape)}: write lengths whose product is at most {MOST_NUMBERS}"
        )
    return argument


def _place(recipe: Recipe, spec: ArraySpec, sizes: Mapping[str, int], lead: tuple[int, ...]) -> Argument:
    """Return a recipe with the shape that it has in a call; KeyError names a size that is missing."""
    own = tuple(axis if isinstance(axis, int) else sizes[axis] for axis in recipe.shape or ())
    if isinstance(recipe, Values):
        array = recipe.read(spec.kind)
        return Argument.of(array.reshape(own) if own else array)
    shape = spec.shape.sizes(sizes, lead) if recipe.shape is None else own
    check(recipe, spec.kind, shape)
    return Argument(recipe, shape)


def _refuse_unknown_options(case: schema.CaseModel, contract: Contract, conventions: Mapping[str, Convention]) -> None:
    names = case.convention
    if unknown := [name for name in names if name not in contract.conventions]:
        known = ", ".join(contract.conventions) or "none"
        raise Refused(("convention",), f"{contract.component} depends on {known}, not on {unknown[0]}")
    if len(set(names)) < len(names):
        raise Refused(("convention",), f"names one twice: {', '.join(names)}")
    for name, option in case.only_with.items():
        if name not in conventions or option != conventions[name].read_option(option):
            raise Refused(("only_with", name), f"{name}: {option} is not in conventions.yaml")


def _add_golden(
    case: Case,
    contract: Contract,
    golden: StoredGolden,
    digest: str,
    *,
    underived: bool,
) -> Case:
    """Return a case with what programs wrote of it; Refused or SpecError if that does not fit."""
    entry = golden.entries.get(case.id)
    if entry is not None:
        case = replace(case, kills=entry.kills)
    if case.error is not None or case.shape_only:
        if entry is not None and entry.derivation is not None and not underived:
            raise SpecError([golden.problem(case.id, f"has golden values, but asks for no values: {golden.remedy}")])
        return case
    if entry is None or entry.derivation != digest:
        if underived:
            return case
        missing = entry is None or entry.derivation is None
        state = "has no golden values" if missing else "was changed after its golden values were derived"
        raise Refused(("id",), f"{state}: run goldformer derive")

    def refuse(error: ValueError | OverflowError) -> SpecError:
        message = "has a number beyond float64 or int64" if isinstance(error, OverflowError) else str(error)
        return SpecError([golden.problem(case.id, f"{message}: {golden.remedy}")])

    return replace(case, golden=read_golden(entry, case, contract, refuse))


def _build_error(
    model: schema.CaseModel,
    error: str,
    contract: Contract,
    place: Location,
    source: Citation | None,
    built: Mapping[str, Case],
) -> Case:
    if model.base is None or model.change is None:
        raise Refused(("expect",), "an error case needs `base`, a working case, and `change`, its one fault")
    base = built.get(model.base)
    if base is None or base.error is not None:
        raise Refused(("base",), f"{model.base!r} is no working case of this file")
    change = model.change
    attributes = {**base.attributes, **change.attributes}
    _check_layers(attributes, contract, ("change", "attributes"))
    inputs = _apply_change(base.inputs, change.inputs, contract.inputs, base, "inputs")
    params = _apply_change(base.params, change.params, contract.params_for(attributes), base, "params")
    case = replace(
        base, id=model.id, title=model.title, clauses=model.clauses, source=source,
        meant_for=model.meant_for, kills=(), attributes=attributes, inputs=inputs, params=params,
        expect={}, printed={}, golden=None, only_with=model.only_with,
        place=place, error=error, base=base.id,
    )  # fmt: skip
    try:
        _check_call(case, contract)
    except ContractViolation as violation:
        if error not in violation.arguments:
            raise Refused(("expect", "error"), f"is {error}, but the contract is broken by: {violation}") from None
        return case
    raise Refused(("change",), "keeps the contract, so nothing can be expected to refuse it")


def _apply_change(
    base: Mapping[str, Argument],
    change: Mapping[str, Recipe | None],
    specs: Mapping[str, ArraySpec],
    case: Case,
    group: str,
) -> dict[str, Argument]:
    fresh = _make_arguments(
        {k: v for k, v in change.items() if v is not None}, specs, case.sizes, case.lead, f"change.{group}"
    )
    return {name: argument for name, argument in {**base, **fresh}.items() if name in fresh or name not in change}


# ── what a case expects of each output ──


def _read_expectation(models: Mapping[str, Any], case: Case, contract: Contract) -> dict[str, Wanted]:
    """Read the expectation for each output, or for the gradient of each argument; Refused if it makes no sense."""
    results = contract.results_of(case)
    if case.cotangent is not None and set(models) == {_ALL}:
        models = dict.fromkeys(results, models[_ALL])
    expect = {}
    for name, model in models.items():
        if name not in results:
            raise Refused(("expect", name), f"is not among what can be asked for: {', '.join(results)}")
        expect[name] = _read_wanted(model, results[name], case)
        _check_chance(name, expect[name], case)
    if not expect:
        raise Refused(("expect",), f"asks for nothing; {contract.component} gives {', '.join(contract.outputs)}")
    for name in case.printed:
        if expect.get(name, Wanted("shape")).form != "all":
            raise Refused(("printed", name), f"needs expect: {{{name}: all}}")
    return expect


def _read_wanted(model: Any, spec: ArraySpec, case: Case) -> Wanted:
    if isinstance(model, str):
        return Wanted("all" if model == "all" else "shape")
    if isinstance(model, schema.StatisticsModel):
        return Wanted("statistics", statistics=tuple(model.statistics))
    shape = spec.shape.sizes(case.sizes, case.lead)
    indices = _list_places(model, spec, shape)
    for place in indices:
        if len(place) != len(shape) or not all(0 <= k < size for k, size in zip(place, shape, strict=True)):
            raise Refused(("expect", spec.name), f"probe {list(place)} lies outside the shape {shape}")
    form: Literal["computed", "probes"] = "computed" if isinstance(model, schema.ComputedModel) else "probes"
    return Wanted(form, indices, drawn=isinstance(model, schema.ComputedModel | schema.DrawnModel))


def _list_places(model: Any, spec: ArraySpec, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """List the places of an output that a case asks for."""
    if isinstance(model, schema.ProbesModel):
        return tuple(tuple(place) for place in model.probes)
    if isinstance(model, schema.DrawnModel):
        return tuple(dict.fromkeys(_draw_places(shape, model.drawn, model.seed)))
    if isinstance(model, schema.ComputedModel):
        corners = (0,) * len(shape), tuple(size - 1 for size in shape)
        return tuple(dict.fromkeys((*corners, *_draw_places(shape, model.computed, model.seed))))
    names = [str(axis) for axis in spec.shape.axes]
    rows = next((i for i, axis in enumerate(names) if axis in _ROWS), None)
    if rows is None or "batch" not in names or len(model.lengths) != shape[names.index("batch")]:
        raise Refused(("expect", spec.name), f"lengths {model.lengths} do not fit the shape {spec.shape} = {shape}")
    batch, first = names.index("batch"), [0] * len(model.lengths)
    if model.padding == "left":
        first = [shape[rows] - length for length in model.lengths]
    ends = [start + length for start, length in zip(first, model.lengths, strict=True)]
    return tuple(p for p in np.ndindex(shape) if first[p[batch]] <= p[rows] < ends[p[batch]])


def _draw_places(shape: tuple[int, ...], count: int, seed: int) -> Iterable[tuple[int, ...]]:
    axes = [below(size, seed, f"axis{i}", (count,)) for i, size in enumerate(shape)]
    return (tuple(int(k) for k in place) for place in zip(*axes, strict=True))


def _check_chance(name: str, wanted: Wanted, case: Case) -> None:
    """Refuse statistics of an output that is not random, and numbers of one that is."""
    if wanted.form == "shape":
        return
    where = ("expect", name)
    try:
        law = law_of(case, name)
    except ValueError as error:
        raise Refused(where, str(error)) from error
    if wanted.form != "statistics":
        if law is not None:
            raise Refused(where, "is random: ask for its statistics or for its shape")
        return
    if law is None or case.cotangent is not None:
        raise Refused(where, "is not random: ask for all of it, for probes or for its shape")
    if len(set(wanted.statistics)) < len(wanted.statistics):
        raise Refused(where, f"names a statistic twice: {', '.join(wanted.statistics)}")
    for statistic in wanted.statistics:
        if why := unfit(law, statistic):
            raise Refused(where, f"has no {statistic}: {why}")
