"""Files of cases: builds recipes, checks shapes against the contract, makes error cases from their base."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from goldformer.spec import case_schema as schema
from goldformer.spec import draw
from goldformer.spec.call import check_call
from goldformer.spec.draw import Recipe
from goldformer.spec.errors import Problem, Refused, SpecError
from goldformer.spec.goldenfile import StoredGolden, read_golden
from goldformer.spec.laws import law_of, unfit
from goldformer.spec.model import Array, ArraySpec, Case, Contract, Wanted
from goldformer.spec.shapes import Binder, ContractViolation
from goldformer.spec.strict import Location, is_part
from goldformer.spec.tables import Citation, Convention
from goldformer.spec.yamlfile import Field, YamlFile, advise_number

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
    names = _list_conventions(raw.get("convention", ()))
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


def _list_conventions(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the conventions of a case, which stand in its file as one name or as a list."""
    return (names,) if isinstance(names, str) else tuple(names)


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
    source = None if model.source == "derived" else Citation(model.source.document, tuple(model.source.rows))
    if isinstance(model.expect, schema.ErrorModel):
        return _build_error(model, model.expect.error, contract, place, source, built)
    if model.base is not None or model.change is not None:
        raise Refused(("base",), "only an error case has a base and a change")
    _check_layers(model.attributes, contract, ("attributes",))
    lead, sizes = _read_sizes(model, contract)
    inputs = _make_recipes(model.inputs, contract.inputs, sizes, lead, "inputs")
    param_specs = contract.params_for(model.attributes)
    names = _list_conventions(model.convention)
    drawn = _find_drawn(model.attributes, model.only_with, names, contract, conventions)
    params = _make_recipes(_expand_params(model.params, drawn), param_specs, sizes, lead, "params")
    case = Case(
        id=model.id, component=contract.component, title=model.title, place=place, clauses=tuple(model.clauses),
        source=source, meant_for=tuple(model.meant_for), sizes=sizes, lead=lead, equal_sizes=model.equal_sizes,
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
        case = replace(case, cotangent=_make_recipe(model.cotangent, first, binder.sizes, case.lead, ("cotangent",)))
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


def _has_several_widths(params: Mapping[str, Recipe]) -> bool:
    """Return True if the inputs, all heads together and the outputs of the attentions of a call differ in width."""
    of_one = ((recipe, _AXES_OF_ONE_WIDTH.get(name.rpartition(".")[2], 0)) for name, recipe in params.items())
    return len({size for recipe, axes in of_one for size in recipe.shape[:axes]}) > 1


def _check_decimals(case: Case) -> None:
    """Refuse decimals next to numbers that are drawn with all bits: these are read as themselves, those are rounded."""
    if not case.has_all_bits:
        return
    for group, recipes in (("inputs", case.inputs), ("params", case.params), ("", {"cotangent": case.cotangent})):
        for name, recipe in recipes.items():
            written = recipe.array if isinstance(recipe, draw.Values) else getattr(recipe, "value", 0.0)
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


def _make_shaped(recipe: Recipe, name: str) -> Array:
    """Return an array of the right shape and kind, with zeros for drawn numbers: a large model has millions."""
    if isinstance(recipe, draw.Dyadic | draw.Uniform | draw.Fill):
        return np.broadcast_to(np.float64(0), recipe.shape)
    return draw.build(recipe, name)


def _check_call(case: Case, contract: Contract) -> Binder:
    inputs, params = (
        {name: _make_shaped(recipe, name) for name, recipe in g.items()} for g in (case.inputs, case.params)
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
    params: schema.AllParamsModel | schema.AllUniformModel | Mapping[str, Any], specs: Mapping[str, ArraySpec]
) -> Mapping[str, schema.RecipeModel]:
    recipe: schema.DrawModel | schema.UniformModel
    if isinstance(params, schema.AllParamsModel):
        recipe = schema.DrawModel(draw="dyadic", seed=params.seed, range=params.range, step=params.step)
    elif isinstance(params, schema.AllUniformModel):
        recipe = schema.UniformModel(draw="uniform", seed=params.seed, range=params.range)
    else:
        return params
    other = recipe if params.gammas is None else recipe.model_copy(update=params.gammas.model_dump())
    drawn = [name for name, spec in specs.items() if params.biases or not spec.optional]
    together = {name: other if name.rpartition(".")[2] == "gamma" else recipe for name in drawn}
    return together | params.but


def _make_recipes(
    models: Mapping[str, Any],
    specs: Mapping[str, ArraySpec],
    sizes: Mapping[str, int],
    lead: tuple[int, ...],
    group: str,
) -> dict[str, Recipe]:
    recipes = {}
    for name, model in models.items():
        if name not in specs:
            raise Refused((group, name), f"is not in the contract, which has {', '.join(specs) or 'none'}")
        if (like := getattr(model, "like", None)) is not None and like not in models:
            raise Refused((group, name), f"is drawn like {like}, which is not among {', '.join(models)}")
        recipes[name] = _make_recipe(model, specs[name], sizes, lead, (group, name))
    return recipes


def _make_recipe(model: Any, spec: ArraySpec, sizes: Mapping[str, int], lead: tuple[int, ...], where: Field) -> Recipe:
    """Return the recipe of a model; Refused at `where` if no array follows from it."""
    try:
        recipe = _convert_recipe(model, spec, sizes, lead)
    except KeyError as error:
        raise Refused(where, f"needs the size {error}: add it to sizes") from error
    except ValueError as error:
        raise Refused(where, str(error)) from error
    except OverflowError as error:
        raise Refused(where, "has a number beyond float64 or int64: write a smaller one") from error
    if len(recipe.shape) > MOST_AXES:
        raise Refused(where, f"has {len(recipe.shape)} axes: write at most {MOST_AXES}")
    if any(size < 0 for size in recipe.shape):
        raise Refused(where, f"has the shape {list(recipe.shape)}: write lengths of 0 or more")
    if math.prod(size for size in recipe.shape if size) > MOST_NUMBERS:
        raise Refused(
            where, f"has the shape {list(recipe.shape)}: write lengths whose product is at most {MOST_NUMBERS}"
        )
    return recipe


#: What an array of booleans or of ids must hold, and how to write that, in place of a fill.
_OF_BOOLEANS = f"booleans: write {schema.BOOLEANS}"
_OF_IDS = "whole numbers: write {values: [3, 1, …]} or {draw: ids, seed: 1, range: [0, 9]}"


def _convert_recipe(model: Any, spec: ArraySpec, sizes: Mapping[str, int], lead: tuple[int, ...]) -> Recipe:
    if isinstance(model, schema.MaskModel):
        return _convert_mask(model, tuple(axis if isinstance(axis, int) else sizes[axis] for axis in model.shape))
    if isinstance(model, schema.ValuesModel):
        return draw.Values(_read_values(model.values, spec, tuple(model.shape) if model.shape else None))
    shape = tuple(model.shape) if model.shape is not None else spec.shape.sizes(sizes, lead)
    if isinstance(model, schema.FillModel):
        if spec.kind != "float":
            instead = {"bool": _OF_BOOLEANS, "ids": _OF_IDS}[spec.kind]
            raise ValueError(f"has fill: {model.fill}, which makes floats, but must hold {instead}")
        return draw.Fill(float(_require_finite(np.array(float(model.fill)))), shape)
    if isinstance(model, schema.IdsModel):
        if model.range[0] > model.range[1]:
            raise ValueError(f"range {model.range} falls: write the smaller end first")
        if max(map(abs, model.range)) >= 2**31:
            raise ValueError(f"range {model.range} is too wide: write ends below 2147483648 in size")
        return draw.Ids(model.seed, model.range[0], model.range[1], shape)
    if isinstance(model, schema.UniformModel):
        return draw.Uniform(model.seed, *draw.interval(*map(str, model.range)), shape, model.like)
    return _convert_draw(model, shape)


def _convert_draw(model: schema.DrawModel, shape: tuple[int, ...]) -> draw.Dyadic:
    grid = tuple(map(str, (*model.range, model.step)))
    if model.ramp is not None and len(shape) < 2:
        raise ValueError(f"has a ramp, but its shape {shape} has no axis of rows")
    ramp = draw.ramp(*map(str, model.ramp), *grid) if model.ramp is not None else None
    return draw.Dyadic(model.seed, *draw.grid(*grid), shape, model.like, ramp)


def _convert_mask(model: schema.MaskModel, shape: tuple[int, ...]) -> draw.Mask:
    if model.lengths is not None and len(model.lengths) != shape[0]:
        raise ValueError(f"has {len(model.lengths)} lengths for a first axis of {shape[0]}")
    if model.causal and len(shape) < 2:
        raise ValueError(f"is causal, but its shape {shape} has no axis of queries")
    lengths = tuple(model.lengths) if model.lengths is not None else None
    if model.blocks is None:
        return draw.Mask(lengths, model.causal, shape)
    return draw.Mask(lengths, model.causal, shape, _read_blocks(model.blocks, shape), model.blocks.size)


def _read_blocks(model: schema.BlocksModel, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of a mask; ValueError unless they cover it."""
    expected = tuple(-(-size // model.size) for size in shape[-2:])
    if len(expected) < 2 or any(len(row) != expected[1] for row in model.keep) or len(model.keep) != expected[0]:
        what = f"rows of {' and '.join(map(str, sorted({len(row) for row in model.keep})))}"
        raise ValueError(
            f"has blocks of {model.size} for the shape {shape}: write {expected[0]} rows of {expected[-1]} for keep, "
            f"not {len(model.keep)} {what}"
        )
    return tuple(map(tuple, model.keep))


def _read_values(values: Any, spec: ArraySpec, shape: tuple[int, ...] | None) -> draw.Array:
    try:
        array = np.array(values)
    except ValueError as error:
        raise ValueError("has rows of unequal length") from error
    allowed = {"float": "fiu", "bool": "b", "ids": "iu"}[spec.kind]
    if array.dtype.kind not in allowed and array.size:
        text = _find_text(values)
        what = f"the text {text[:60]!r}" if text else f"{array.dtype} values"
        raise ValueError(f"holds {what} where the contract says {spec.kind}{advise_number(text)}")
    array = _require_finite(array.astype({"float": np.float64, "bool": np.bool_, "ids": np.int64}[spec.kind]))
    return array if shape is None else array.reshape(shape)


def _find_text(values: Any) -> str:
    """Return the first text in nested lists, or ""."""
    if isinstance(values, list):
        return next(filter(None, map(_find_text, values)), "")
    return values if isinstance(values, str) else ""


def _require_finite(array: draw.Array) -> draw.Array:
    if not np.isfinite(array).all():
        raise ValueError("holds an infinity or NaN: write finite numbers")
    return array


def _refuse_unknown_options(case: schema.CaseModel, contract: Contract, conventions: Mapping[str, Convention]) -> None:
    names = _list_conventions(case.convention)
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
        base, id=model.id, title=model.title, clauses=tuple(model.clauses), source=source,
        meant_for=tuple(model.meant_for), kills=(), attributes=attributes, inputs=inputs, params=params,
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
    base: Mapping[str, Recipe], change: Mapping[str, Any], specs: Mapping[str, ArraySpec], case: Case, group: str
) -> dict[str, Recipe]:
    fresh = _make_recipes(
        {k: v for k, v in change.items() if v is not None}, specs, case.sizes, case.lead, f"change.{group}"
    )
    return {name: recipe for name, recipe in {**base, **fresh}.items() if name in fresh or name not in change}


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
    axes = [draw.below(size, seed, f"axis{i}", (count,)) for i, size in enumerate(shape)]
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
