"""The formula of each component, written once, in steps that have the field's names.

They run on arrays of any kind (arrays.py). In the dtypes of NumPy they are the textbook; in balls they give golden
values, and in variances the tolerance. Every constant is one that `arrays` makes, so results keep the dtype of the
inputs, and a ball is exact.

A known mistake is one step replaced, everywhere or in one place; so is an option of a convention.

steps            mark a function as a step, and replace it
arrays           what each kind of numbers does in its own way
parts            the parameters of a part
randomness       Xavier-uniform weights and dropout
attention        softmax, scaled dot-product attention and masks
distance         sliding windows, ALiBi and the positions of words
embedding, rope  token embedding and positional encoding; rotary position embedding
heads, grouped   multi-head attention, fused and separate, and single-head attention; grouped-query attention
cached           attention with a cache of keys and values, over several calls
layers, rms      feed-forward network, layer normalisation, encoder and decoder; root mean square normalisation
gated, experts   gated feed-forward network; a mixture of experts and its router
decoder_only     the layer and the model of decoder-only Transformers
cached_model     this model with a cache in each layer, over several calls
generation       the tokens that this model writes after a prompt
transformer      the whole model and its output layer
targets, losses  lengths and targets; cross-entropy and Kullback–Leibler divergence
decoding         greedy decoding and beam search
backward         the training steps of the java class
sampling         the filters between logits and a draw
options          the options of the conventions
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from goldformer.spec.formulas.cached import attend_with_cache
from goldformer.spec.formulas.cached_model import continue_model
from goldformer.spec.formulas.steps import Step, list_steps
from goldformer.spec.load import ROOT, load_spec

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

_CONTRACTS: Final = {path.stem for path in (ROOT / "contracts").glob("*.yaml")}
#: The formula of each component, by its name: the step that has the name of a contract.
COMPONENTS: Final[Mapping[str, Step]] = {
    step.__name__: step
    for step in sorted(list_steps(), key=lambda step: step.__name__)
    if step.__name__ in _CONTRACTS and step.__module__.startswith(f"{__name__}.")
}

#: One call of each component that is called several times, which `COMPONENTS` has over all calls.
SESSION_CALLS: Final[Mapping[str, Step]] = {"cached_attention": attend_with_cache, "cached_model": continue_model}


def name_outputs(component: str, returned: Any) -> dict[str, Any]:
    """Return what the formula of a component returned as a mapping by the names of its outputs."""
    if isinstance(returned, Mapping):
        return dict(returned)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(load_spec().contracts[component].outputs, outputs, strict=True))
