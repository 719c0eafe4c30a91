"""The place of a mistake that nothing known explains: the part of a component that is wrong when it acts by itself.

A part adds nothing where its last weights and biases are 0. A call in which only one acts is compared with the formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.calls import Calls, Exhausted, has_empty_row, is_model_right
from goldformer.conformance.diagnosis.diagnosed import Place
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Arguments, Result, read_arguments
from goldformer.conformance.judging.measure import describe_values
from goldformer.conformance.judging.verdict import Difference
from goldformer.conformance.properties.relations import join_names
from goldformer.spec import Spec

#: The last weight of an attention or a network, in a layer of a stack.
_LAST_WEIGHT: Final = re.compile(r"(.*?)(?:w_o|w_2|w_down)")
_WORDS: Final = {
    "": "the attention", "self_attention": "the self-attention", "cross_attention": "the cross-attention",
    "feed_forward": "the feed-forward network",
}  # fmt: skip
_BEFORE_WEIGHTS: Final = ("q", "k", "scores", "scaled_scores", "weights", "cross_weights", "average_weights")
_LOOP: Final = "the loop of decoding"
_MODEL: Final = "the model's forward pass on several words, also outside the loop"


def locate_mistake(judgements: Sequence[Judgement], spec: Spec) -> tuple[Judgement, Place] | None:
    """Return the place of a component's mistake with the failing case that shows it; None if no case can tell.

    The judgements are those of one component.
    """
    fitting = [judgement for judgement in judgements if _can_show(judgement, spec)]
    first = min(fitting, key=_rank, default=None)
    if first is None or first.case is None:
        return None
    search = _Search(Calls(first.bench, first.case.component), read_arguments(first.case), first.case.id)
    decodes = "bos_id" in first.case.attributes
    place = _find_loop(fitting, search.calls, search.base) if decodes else search.find_part()
    return None if place is None else (first, place)


def _can_show(judgement: Judgement, spec: Spec) -> bool:
    case = judgement.case
    return (
        case is not None
        and judgement.verdict.bad
        and bool(judgement.verdict.differences)
        and case.cotangent is None
        and spec.contracts[case.component].session is None
        and not (case.random or case.full_size or "dropout_rate" in case.attributes)
        and not any(judgement.bench.adapter.leaves_open(name, case.component) for name in case.conventions)
        and not has_empty_row(read_arguments(case))
    )


def _rank(judgement: Judgement) -> tuple[bool, bool, int]:
    """Order failing cases: those whose main output is wrong, without masks, small ones."""
    case = judgement.case
    assert case is not None, "only cases can show it"
    wrong = {difference.output for difference in judgement.verdict.differences}
    main = judgement.bench.spec.contracts[case.component].first_output
    return main not in wrong, any("mask" in name for name in case.inputs), case.size


@dataclass(frozen=True, slots=True)
class _Part:
    """An attention or a network, in all layers of its stack: the beginnings of its parameters' names."""

    id: str
    prefixes: tuple[str, ...]

    @property
    def words(self) -> str:
        """Its name, such as "the encoder's self-attention"."""
        stack, _, block = self.id.rpartition(".")
        words = _WORDS.get(block, block)
        return words.replace("the ", f"the {stack}'s ", 1) if stack else words

    def clear(self, arguments: Arguments, *names: str) -> Arguments:
        """Return a call in which parameters of the part are 0."""
        chosen = {prefix + name for prefix in self.prefixes for name in names}
        params = {name: array * 0 if name in chosen else array for name, array in arguments.params.items()}
        return replace(arguments, params=params)

    def silence(self, arguments: Arguments) -> Arguments:
        """Return a call in which the part adds nothing."""
        return self.clear(arguments, "w_o", "b_o", "w_2", "b_2", "w_down", "b_down")


@dataclass
class _Search:
    """The calls of one search, each of which silences some parts of a failing case."""

    calls: Calls
    base: Arguments
    case: str
    #: What is right by itself, in words.
    holds: list[str] = field(default_factory=list)

    def find_part(self) -> Place | None:
        """Return the parts that are wrong by themselves, or what is left when all are silent."""
        parts = _list_parts(self.base.params)
        with suppress(Exhausted):
            if len(parts) == 1:
                return self._find_in_attention(parts[0])
            if parts and (place := self._find_around(parts)):
                return place
            wrong = list(self._find_wrong(parts))
            if wrong:
                part, _, difference = wrong[0]
                silent = join_names([other.id or "attention" for other in parts if other != part])
                call = f"{self.case} with {silent} silent (last weights and biases 0): {_describe(difference)}"
                names = tuple(self._describe(*found) for found in wrong)
                return Place(names, tuple(self.holds), call)
        return None

    def _find_in_attention(self, part: _Part) -> Place | None:
        """Return the wrong steps of an attention by itself; of a network by itself there is no smaller part."""
        if "w_o" not in self.base.params:
            return None
        wrong = self.calls.find_differences(self.base)
        return Place((self._describe(part, self.base, wrong[0] if wrong else None),))

    def _find_around(self, parts: Sequence[_Part]) -> Place | None:
        """Return what surrounds the parts as the place, if it is wrong while all are silent."""
        name = "the residuals and normalisations"
        if "table" in self.base.params:
            name = "the embedding, the positions, the normalisations or the output layer"
        wrong = self.calls.find_differences(_silence(self.base, parts))
        if wrong:
            call = f"{self.case} with all parts silent (last weights and biases 0): {_describe(wrong[0])}"
            return Place((name,), (), call)
        self.holds += [name] if wrong == () else []
        return None

    def _find_wrong(self, parts: Sequence[_Part]) -> Iterator[tuple[_Part, Arguments, Difference]]:
        """Yield the parts that are wrong by themselves with the calls that show it, and note those that are right."""
        reader = next((part for part in parts if part.id == "decoder.cross_attention"), None)
        is_reader_wrong = False
        for part in sorted(parts, key=lambda part: part != reader):
            # The encoder is seen only through the decoder's cross-attention.
            acting = {part, reader} if reader and part.id.startswith("encoder.") else {part}
            if is_reader_wrong and len(acting) > 1:
                continue
            arguments = _silence(self.base, [other for other in parts if other not in acting])
            wrong = self.calls.find_differences(arguments)
            if wrong:
                is_reader_wrong |= part == reader
                yield part, arguments, wrong[0]
            elif wrong == ():
                self.holds.append(part.words)

    def _describe(self, part: _Part, arguments: Arguments, first: Difference | None) -> str:
        """Return the name of a wrong part; of an attention the steps that are wrong, as its first difference says."""
        if part.id.endswith("feed_forward"):
            return f"{part.words}, or the normalisation that it reads"
        masks = {name for name, array in arguments.inputs.items() if array.dtype.kind == "b"}
        plain = replace(arguments, inputs={n: a for n, a in arguments.inputs.items() if n not in masks})
        if masks and self.calls.find_differences(plain) == ():
            return f"the mask of {part.words}"
        if first and first.output in _BEFORE_WEIGHTS:
            return f"the queries, keys, scores or mask of {part.words}"
        wrong = self.calls.find_differences(part.clear(arguments, "w_q", "b_q"))
        if wrong == ():
            return f"the queries, keys or scores of {part.words}"
        before = "" if part.id == "" and "norm_1.gamma" not in arguments.params else ", or the normalisation before it"
        # Queries of 0 may be divided by their length, which says nothing about the values.
        is_finite = wrong is not None and all(d.first and math.isfinite(d.first.got) for d in wrong)
        return f"{'the values, the heads or the output of ' if is_finite else ''}{part.words}{before}"


def _list_parts(params: Mapping[str, object]) -> list[_Part]:
    found: dict[str, list[str]] = {}
    for name in params:
        if match := _LAST_WEIGHT.fullmatch(name):
            words = [word for word in match[1].split(".") if word and not word.isdigit() and word != "layers"]
            found.setdefault(".".join(words), []).append(match[1])
    stacks = {id_.rpartition(".")[0] for id_ in found}
    # Where there is one stack, its name says nothing.
    named = {id_ if len(stacks) > 1 else id_.rpartition(".")[2]: tuple(prefixes) for id_, prefixes in found.items()}
    return [_Part(id_, prefixes) for id_, prefixes in named.items()]


def _silence(arguments: Arguments, parts: Collection[_Part]) -> Arguments:
    for part in parts:
        arguments = part.silence(arguments)
    return arguments


def _describe(difference: Difference) -> str:
    """Describe the first wrong element of an output."""
    first = difference.first
    assert first is not None, "it is wrong"
    return f"{difference.output}{list(first.index)}: {describe_values(first)}"


def _find_loop(judgements: Sequence[Judgement], calls: Calls, base: Arguments) -> Place | None:
    """Return the loop of decoding as the place, or its model: the words of all failing cases tell, or one more call."""
    shown = [_classify_words(judgement) for judgement in judgements]
    if all(kind == "longer" for kind in shown):
        return Place((f"{_LOOP}: what it writes after the end of a sentence",), is_loop=True)
    if all(kind == "shorter" for kind in shown):
        return Place((f"{_LOOP}: where a sentence ends, or which of its words are returned",), is_loop=True)
    is_right = None
    with suppress(Exhausted):
        is_right = is_model_right(calls, base)
    if is_right is None:
        return None
    if not is_right:
        return Place((_MODEL,))
    words = f"{_LOOP}: what it carries from one word to the next, or how it scores or chooses a word"
    return Place((words,), ("the model's forward pass on the same words",), is_loop=True)


def _classify_words(judgement: Judgement) -> str:
    """Return "longer" if only what follows the end of sentences is wrong, "shorter" if only last words are missing."""
    golden = judgement.expected.get("ids")
    if not isinstance(judgement.outcome, Result) or golden is None or golden.indices is not None:
        return ""
    assert judgement.case is not None, "only cases can show it"
    actual, pad = judgement.outcome.outputs["ids"], judgement.case.attributes["pad_id"]
    expected = np.asarray(golden.values).reshape(actual.shape)
    differ = actual != expected
    # What follows the last word of a sentence is pad_id.
    in_actual, in_expected = (np.cumsum((ids != pad)[..., ::-1], axis=-1)[..., ::-1] > 0 for ids in (actual, expected))
    if not differ.any():
        return ""
    others = any(difference.output != "ids" for difference in judgement.verdict.differences)
    if not (in_expected & differ).any() and not others:
        return "longer"
    return "" if (in_actual & differ).any() else "shorter"
