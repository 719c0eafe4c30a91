"""A golden case computed in float64: without a proof, but a thousand times as fast."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.draw import Argument, Dyadic
from goldformer.spec.laws import Law, law_of
from goldformer.spec.model import Array, Attribute, Case, Contract, GoldenArray
from goldformer.spec.oracle.derive import Outputs, apply, choose_options, in_numbers
from goldformer.spec.oracle.run import derive_outputs
from goldformer.spec.oracle.searches import teacher_forced
from goldformer.spec.tables import Convention

#: A step so small that its square vanishes: an imaginary part of this size is a derivative, without cancellation.
_STEP: Final = 2.0**-100

#: The attributes of a model that decodes.
_MODEL: Final = ("num_heads", "num_encoder_layers", "num_decoder_layers", "pad_id")

Changed = Mapping[str, Array | Attribute]


def _is_of_decoder(name: str) -> bool:
    """Return True if a name belongs to the half of the model that follows the memory."""
    return name.startswith(("decoder.", "decoder_norm.")) or name in ("target", "w_vocab", "b_vocab")


@dataclass(frozen=True)
class PlainCase:
    """A golden case under the default option of its convention, which can be computed with some arguments changed."""

    case: Case
    contract: Contract
    conventions: Mapping[str, Convention]

    @cached_property
    def golden(self) -> Mapping[str, GoldenArray]:
        """The golden values of the outputs, or of the gradients, that are compared: also those that are not stored."""
        assert self.case.golden is not None, "what is derived can be computed"
        stored, whole = self.case.golden.options, self._outputs({}) if self.case.is_computed else {}
        if whole:
            outputs = next(iter(stored.values()))
        elif self.case.key(self._options) in stored:
            outputs = self.case.expects(self._options)
        else:
            outputs = derive_outputs(self.case, self.contract, self._options, draws=True)
        assert outputs is not None, "the documents' own option refuses nothing"
        computed = {name for name, wanted in self.case.expect.items() if wanted.form == "computed"}
        return {n: GoldenArray(whole[n], a.error_scale) if n in computed else a for n, a in outputs.items()}

    @cached_property
    def _options(self) -> Mapping[str, str]:
        """The documents' own option of each convention of the case, or the one that leaves no parameter out."""
        options = {name: self.conventions[name].default for name in self.case.conventions}
        for array in self.case.dependent.values():
            for name, allowed in array.only_with.items():
                if array.name in self.case.params and options.get(name, allowed[0]) not in allowed:
                    options[name] = allowed[0]
        return options

    @property
    def is_random(self) -> bool:
        """True if statistics are compared, which follow from laws."""
        return any(array.within is not None for array in self.golden.values())

    def laws(self, changed: Changed) -> Mapping[str, Law | None]:
        """Return the laws of the random outputs; ValueError if no law can judge them."""

        def now(group: Mapping[str, Argument]) -> dict[str, Argument]:
            return {n: Argument.of(np.asarray(changed[n])) if n in changed else a for n, a in group.items()}

        case = replace(self.case, inputs=now(self.case.inputs), params=now(self.case.params))
        return {name: law_of(case, name) for name in self.golden}

    def compute(self, changed: Changed) -> Mapping[str, Array]:
        """Compute the values that are compared.

        A gradient comes as one number, the sum of its elements under drawn weights. Decoding searches once: with
        changed arguments it gives, as `scores`, the log-probabilities of the words that were found without a change.
        """
        if self.case.cotangent_array is not None:
            return {name: self.slope(name, changed) for name in self.golden}
        if {"ids", "scores"} <= set(self.contract.outputs) and "scores" in self.golden:
            return {"scores": self._rescore(changed)}
        outputs = self._outputs(changed)
        return {name: array.select(np.asarray(outputs[name])) for name, array in self.golden.items()}

    def _outputs(self, changed: Changed) -> Outputs:
        options: dict[str, Any] = {**choose_options(self.case, self.contract, self._options)}
        if changed and self.case.component == "transformer" and all(map(_is_of_decoder, changed)):
            options["memory"] = self._memory
        with np.errstate(all="ignore"):  # a changed argument may lie outside the domain of the formula
            return apply(self.case.component, float, *self._arguments(changed), options)

    @cached_property
    def _memory(self) -> NDArray[Any]:
        """The encoder's output, which no change of the decoder's half moves."""
        return self._outputs({})["memory"]

    def _arguments(self, changed: Changed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return inputs, parameters and attributes."""

        def now(group: Mapping[str, Any]) -> dict[str, Any]:
            return {name: changed.get(name, value) for name, value in group.items()}

        return now(self.case.input_arrays), now(self.case.param_arrays), now(self.case.attributes)

    def slope(self, name: str, changed: Changed) -> NDArray[np.float64]:
        """Compute the derivative along one direction in the space of an argument, at the elements that are compared."""
        inputs, params, _ = self._arguments(changed)
        at = {**inputs, **params}[name]
        direction = np.zeros(at.shape)
        weights = Dyadic(draw="dyadic", seed=0, range=(-1, 1), step="1/256").build(name, at.shape)
        places = self.golden[name].indices
        where = ... if places is None else tuple(np.array(places).T)
        direction[where] = weights[where]
        with warnings.catch_warnings():
            # A formula that compares magnitudes drops the imaginary part.
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            output = self._outputs({**changed, name: at + 1j * _STEP * direction})[self.contract.first_output]
        slope: NDArray[np.float64] = np.asarray((output * self.case.cotangent_array).sum().imag / _STEP)
        return slope

    @cached_property
    def _found(self) -> Array:
        """The sentences that decoding finds, a row each, those of one sample next to each other."""
        ids = self.golden["ids"].values if "ids" in self.golden else self._outputs({})["ids"]
        return ids.reshape(-1, ids.shape[-1])

    def _rescore(self, changed: Changed) -> Array:
        inputs, params, attributes = self._arguments(changed)
        ended = self._found == attributes["eos_id"]
        there = np.cumsum(ended, axis=-1) - ended == 0
        # The fill of the places after the end need not be a word of the table.
        words = np.where(there, self._found, attributes["eos_id"])
        source = np.repeat(inputs["source"], len(words) // len(inputs["source"]), axis=0)
        model = {name: attributes[name] for name in _MODEL}
        options = choose_options(self.case, self.contract, self._options)
        with in_numbers(self.case.component, float, options):
            forced = teacher_forced(source, words, bos_id=int(attributes["bos_id"]), params=params, **model)
        log = forced["log_probabilities"]
        scores: Array = np.take_along_axis(log, words[..., None], axis=-1)[..., 0][there]
        return scores
