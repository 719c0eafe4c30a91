"""Random calls of realistic size, as cases without golden values: `--drawn N` adds them to a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

from goldformer.spec import Case, Contract, Spec
from goldformer.spec.draw import Dyadic, Ids, Mask, Recipe
from goldformer.spec.model import ArraySpec, Attribute, Wanted
from goldformer.spec.strict import Location

#: A small model of today. From 256 columns on, error scales are measured by whole matrices: a model of this width takes
#: a second or two, one of 64 columns half a minute.
SIZES: Final = {
    "n": 256, "batch": 2, "heads": 4, "seq": 16, "q_seq": 16, "kv_seq": 20, "source_seq": 20, "length": 24, "d_k": 64,
    "d_v": 64, "d_input": 256, "d_query": 256, "d_key": 256, "d_value": 256, "d_model": 256, "d_ff": 512, "vocab": 256,
    "layers": 1, "encoder_layers": 1, "decoder_layers": 1, "kv_heads": 2, "group": 2, "pairs": 32,
}  # fmt: skip

#: The ranges of parameters: weights like Xavier-uniform ones of this width, and gammas around 1.
_WEIGHTS: Final = (Fraction(-1, 8), Fraction(1, 8), Fraction(1, 1024))
_GAMMAS: Final = (Fraction(1, 2), Fraction(3, 2), Fraction(1, 128))
_INPUTS: Final = (Fraction(-2), Fraction(2), Fraction(1, 64))
#: The range of what has to be a distribution: no part is 0 or negative.
_PARTS: Final = (Fraction(1, 256), Fraction(1), Fraction(1, 256))

#: Attributes that are not random, and no sizes.
_FIXED: Final[Mapping[str, Attribute]] = {
    "pad_id": 0, "bos_id": 1, "eos_id": 2, "smoothing": 0.1, "causal": True, "training": True,
    "calls": (12, 3, 1),
}  # fmt: skip

#: The shape of the axes that "..." stands for.
_LEAD: Final = (2, 2)

#: No random calls: the output is random, or it is a training step or a search, whose numbers grow or branch with size.
LEFT_OUT: Final = frozenset(
    {"dropout", "xavier_uniform", "single_head_attention_step", "greedy_decode", "beam_search", "generate"}
)


def draw_cases(spec: Spec, components: Iterable[str], count: int) -> Iterator[Case]:
    """Yield `count` calls of each component, with the seeds from 1 on; a component without inputs has none."""
    for name in components:
        contract = spec.contracts[name]
        if name in LEFT_OUT or not contract.inputs:
            continue
        for seed in range(1, count + 1):
            yield _draw_case(contract, seed, spec)


def _draw_case(contract: Contract, seed: int, spec: Spec) -> Case:
    attributes = {name: _choose_attribute(name, contract) for name, a in contract.attributes.items() if not a.optional}
    inputs = {name: _make_recipe(array, "inputs", seed) for name, array in contract.inputs.items()}
    # The default of every convention decides which parameters there are.
    options = {name: convention.default for name, convention in spec.conventions.items()}
    specs = contract.params_under(attributes, options)
    params = {name: _make_recipe(array, "params", seed) for name, array in specs.items()}
    conventions = {name: tuple(spec.conventions[name].options) for name in sorted(contract.conventions_of_params)}
    return Case(
        id=f"drawn-{contract.component.replace('_', '-')}-{seed}",
        component=contract.component,
        title=f"Drawn arguments of realistic size, seed {seed}",
        sizes=SIZES, lead=_LEAD, attributes=attributes, inputs=inputs, params=params, conventions=conventions,
        expect=dict.fromkeys(contract.outputs, Wanted("shape")),
        place=Location(spec.root / "cases" / "drawn", 1),
        dependent={n: a for n, a in contract.params_for(attributes).items() if a.only_with},
    )  # fmt: skip


def _choose_attribute(name: str, contract: Contract) -> Attribute:
    size = contract.attributes[name].size
    return SIZES[size] if size is not None else _FIXED[name]


def _make_recipe(array: ArraySpec, group: str, seed: int) -> Recipe:
    shape = array.shape.sizes(SIZES, _LEAD)
    if array.kind == "bool":
        return Mask(None, causal=True, shape=shape)
    if array.kind == "ids":
        return Ids(seed, 0, SIZES[array.below or "vocab"] - 1, shape)
    if group == "inputs":
        return Dyadic(seed, *(_PARTS if array.name == "target" else _INPUTS), shape)
    return Dyadic(seed, *(_GAMMAS if array.name.endswith("gamma") else _WEIGHTS), shape)
