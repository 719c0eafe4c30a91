"""The textbook: the formulas of the spec in the dtypes of NumPy, with gradients, as an adapter has them.

It rounds as other people's code does, so a mistake made in it, one step replaced, gives what their mistake gives.

differentiation                the gradients of each component
checked                        the check of a call by its contract
reverse                        arrays that record their operations, and the sweep back
build                          an adapter object with steps replaced
"""

from collections.abc import Mapping
from typing import Any, Final

from goldformer.adapters.textbook.checked import check_first
from goldformer.adapters.textbook.differentiation import make_gradient
from goldformer.spec import formulas, load_spec
from goldformer.spec.formulas.steps import Step

#: The gradients of each component, by its name.
_GRADIENTS: Final[Mapping[str, Step]] = {
    name: make_gradient(formulas.COMPONENTS[name])
    for name, contract in load_spec().contracts.items()
    if contract.has_gradients
}

#: All components and their gradients, by name; what is called several times as one call of it.
COMPONENTS: Final[Mapping[str, Step]] = dict(
    sorted(
        {
            **formulas.COMPONENTS,
            **formulas.SESSION_CALLS,
            **{gradient.__name__: gradient for gradient in _GRADIENTS.values()},
        }.items()
    )
)
#: The same as whoever calls the textbook has them: a component refuses what contradicts its contract.
CHECKED: Final[Mapping[str, Step]] = {
    name: check_first(name, formula) if name in formulas.COMPONENTS else formula for name, formula in COMPONENTS.items()
}


def __getattr__(name: str) -> Any:
    """Return a component or its gradients by name."""
    if name not in CHECKED:
        raise AttributeError(f"the textbook has no component {name}")
    return CHECKED[name]
