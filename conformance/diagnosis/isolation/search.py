"""The search for the place of a mistake that nothing known explains, by calls that leave only one part acting.

It begins with a failing case. First one layer is left of each stack; then all parts are silent; then each part acts by
itself; then several of them together. The smallest set of parts that is wrong is the place. From that call everything
is taken out that it does not need to be wrong: what cannot be taken out says more about the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.diagnosed import IsolatedMistake
from goldformer.conformance.diagnosis.isolation.calls import (
    Calls,
    Exhausted,
    GradientCalls,
    draw_cotangent,
    has_empty_row,
    has_scaled_scores,
    is_model_right,
)
from goldformer.conformance.diagnosis.isolation.sentences import (
    BEHIND_THE_END,
    CUT_SHORT,
    LATER,
    MADE_BY,
    MEMORY,
    OR_MEMORY,
    PAST_ATTENTION,
    SCORE,
    ActingNorms,
    describe_call,
    describe_element,
    describe_group,
    describe_loop,
    describe_part,
    describe_skeleton,
    find_contradiction,
    name_alone,
    name_skeleton,
    sort_by_flow,
)
from goldformer.conformance.diagnosis.isolation.switches import (
    Part,
    Switch,
    list_general,
    list_layer_switches,
    list_memory_switches,
    list_of_skeleton,
    list_parts,
    list_single_steps,
    make_uneven,
)
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Arguments, Result, read_arguments
from goldformer.conformance.judging.measure import GRADIENT_OF
from goldformer.conformance.judging.verdict import Difference
from goldformer.conformance.properties.counterexample import CaseHead, RecordedCall, write_call
from goldformer.spec import Case, Spec

#: The components that are made of parts which can be silenced.
ISOLATED = frozenset(
    {
        "multi_head_attention", "fused_multi_head_attention", "encoder_layer", "decoder_layer", "encoder", "decoder",
        "transformer", "greedy_decode", "beam_search",
    }
)  # fmt: skip
#: The largest case, in numbers, whose gradients are isolated: those of one call take half a second of the formulas.
_LARGEST_GRADIENT: Final = 600
#: What goes before the name of a place that only gradients show.
_BACKWARD: Final = "the backward pass of "
#: The failing cases with which a search under other options begins at most, one after the other.
_MOST_BEGUN: Final = 4
#: The most places that are described: several parts may be wrong, each by itself.
_MOST_PLACES: Final = 2


def isolate(
    judgements: Mapping[int, Judgement], spec: Spec, options: Mapping[str, str] | None = None
) -> dict[int, tuple[IsolatedMistake, str]]:
    """Return the place of a component's mistake, and the smallest wrong call as a file of one case.

    The judgements are those of one component; the key of the failing case that began the search is that of the result,
    which is empty if no case can tell. At most MOST_CALLS calls are made, and no more once one is not answered. The
    calls are judged under these options instead of the declared ones: a case that is right then tells nothing, and the
    search begins with the next one.
    """
    options = options or {}
    words = _name_wrong_words([j for j in judgements.values() if _can_begin(j)])
    for key in rank_failing(judgements)[: _MOST_BEGUN if options else 1]:
        search = _Search.of(_assume(judgements[key], options, spec), spec, words)
        if found := search.find_mistake():
            mistake, example = found
            return {key: (replace(mistake, options=tuple(options.items())), example)}
    return {}


def _assume(judgement: Judgement, options: Mapping[str, str], spec: Spec) -> Judgement:
    """Return a judgement of an implementation as if it declared these options."""
    bench = judgement.bench
    return replace(judgement, bench=replace(bench, adapter=bench.adapter.declare(options, spec)))


def rank_failing(judgements: Mapping[int, Judgement]) -> list[int]:
    """Return the keys of the failing cases with which a search can begin, the plainest first."""
    fitting = [key for key, judgement in judgements.items() if _can_begin(judgement)]
    return sorted(fitting, key=lambda key: _rank(judgements[key]))


def _can_begin(judgement: Judgement) -> bool:
    case, bench = judgement.case, judgement.bench
    return (
        case is not None
        and case.component in ISOLATED
        and judgement.verdict.bad
        and bool(judgement.verdict.differences)
        and (case.cotangent is None or case.size <= _LARGEST_GRADIENT)
        and not (case.random or case.full_size or "dropout_rate" in case.attributes)
        and not any(bench.adapter.leaves_open(name, case.component) for name in case.conventions)
        and not has_empty_row(read_arguments(case))
    )


def _is_of_part(difference: Difference, part: Part, arguments: Arguments) -> bool:
    """Return True for the gradient of a part's parameter."""
    name = difference.output.removeprefix(GRADIENT_OF)
    return name.startswith(f"{part.id}.") or (part.is_whole and name in arguments.params)


def _name_wrong_words(judgements: Sequence[Judgement]) -> str:
    """Return the place of a mistake that the wrong sentences of all failing cases show by themselves, or nothing.

    They are right ones without their last words, or only what stands behind the end of a sentence is wrong.
    """
    ruled_out = set()
    for judgement in judgements:
        assert judgement.case is not None, "only cases can begin"
        golden = judgement.expected.get("ids") if isinstance(judgement.outcome, Result) else None
        if golden is None or golden.indices is not None or not isinstance(judgement.outcome, Result):
            return ""
        actual, pad = judgement.outcome.outputs["ids"], judgement.case.attributes["pad_id"]
        expected = np.asarray(golden.values).reshape(actual.shape)
        differ = actual != expected
        # What follows the last word of a sentence is pad_id.
        in_actual, in_expected = (
            np.cumsum((ids != pad)[..., ::-1], axis=-1)[..., ::-1] > 0 for ids in (actual, expected)
        )
        if not differ.any() or (in_actual & differ).any():
            ruled_out.add(CUT_SHORT)
        if (in_expected & differ).any() or any(d.output != "ids" for d in judgement.verdict.differences):
            ruled_out.add(BEHIND_THE_END)
    return next((place for place in (BEHIND_THE_END, CUT_SHORT) if place not in ruled_out), "")


def _rank(judgement: Judgement) -> tuple[bool, bool, bool, int]:
    """Order failing cases: results before gradients, those whose main output is wrong, without masks, small ones."""
    case = judgement.case
    assert case is not None, "only cases can begin"
    wrong = {difference.output for difference in judgement.verdict.differences}
    main = judgement.bench.spec.contracts[case.component].first_output
    backward = case.cotangent is not None
    return backward, main not in wrong and not backward, any("mask" in name for name in case.inputs), case.size


@dataclass(frozen=True, slots=True)
class _Place:
    """A place: its id and name, the switches that are off in the smallest call that shows it, and those that it needs.

    Each of the switches `kept` makes that call right.
    """

    id: str
    words: str
    off: frozenset[str]
    kept: tuple[str, ...] = ()


@dataclass
class _Search:
    """The calls of one search: a call is the failing case after the switches that are off, in their order."""

    calls: Calls
    base: Arguments
    case: Case
    parts: Sequence[Part]
    general: Sequence[Switch]
    #: Those that leave one step of decoding, and one layer.
    single: Sequence[Switch]
    #: The outputs that decide whether a call is wrong.
    judged: frozenset[str]
    switches: dict[str, Switch]
    #: True if a normalisation comes after each residual.
    is_post: bool
    #: The place that the wrong words of all failing cases show by themselves, if they do.
    shown: str
    #: The outputs that it returns, as data flows to them.
    outputs: Sequence[str] = ()
    #: Those of what is left when all parts are silent, and of the memory: known once the layers are.
    skeleton: Sequence[Switch] = ()
    memory: Sequence[Switch] = ()
    tried: dict[frozenset[str], tuple[Difference, ...] | None] = field(default_factory=dict)
    #: What is right by itself, in words.
    holds: list[str] = field(default_factory=list)
    #: True if one layer is right.
    is_later: bool = False

    @classmethod
    def of(cls, judgement: Judgement, spec: Spec, shown: str) -> _Search:
        """Begin a search with a failing case; `shown` is a place that the wrong words show by themselves."""
        assert judgement.case is not None, "only cases can begin"
        component, bench, base = judgement.case.component, judgement.bench, read_arguments(judgement.case)
        contract, wrong = spec.contracts[component], {d.output for d in judgement.verdict.differences}
        main = contract.first_output
        judged = contract.flow if main == "ids" else {main} if main in wrong else wrong
        backward = judgement.case.cotangent is not None
        post = bench.adapter.options(component, spec).get("norm_placement", "post") == "post"
        parts, general = list_parts(base), list_general(contract, base)
        single = [*list_single_steps(base), *list_layer_switches(contract, base)]
        of_parts = [s for part in parts for s in (*part.details, *part.probes, part.silence)]
        switches = {s.id: s for s in (*single, make_uneven(base), *general, *of_parts)}
        calls = (GradientCalls if backward else Calls)(bench, component)
        returned = getattr(judgement.outcome, "outputs", ()) if not backward and main != "ids" else ()
        outputs = [name for name in contract.flow if name in returned]
        return cls(
            calls, base, judgement.case, parts, general, single, frozenset(judged), switches, post, shown, outputs
        )

    def find_mistake(self) -> tuple[IsolatedMistake, str] | None:
        """Return the places found and the smallest wrong call; None if the failing case is right when called again."""
        places: list[_Place] = []
        with suppress(Exhausted):
            for place in self._find_places():
                places.append(place)  # noqa: PERF402 - a place that was found before the last call is kept
        if not places:
            return None
        first, skeleton = places[0], name_skeleton(self.calls.component, self.acting_norms)
        around = any("normalisation" in place.words for place in places)
        wrong = [d for d in self._list_wrong(first.off) if len(places) == 1 or d.output in self.judged]
        mistake = IsolatedMistake(
            places=tuple(place.id for place in places),
            names=tuple(f"{_BACKWARD if self.is_backward else ''}{place.words}" for place in places),
            holds=tuple(name for name in self.holds if not (around and name == skeleton)),
            wrong_call=describe_call(self.case.id, first.off, self.switches, self.parts),
            element=describe_element(wrong[0]),
            right_with=tuple(self.switches[id_].words for id_ in first.kept),
            calls=self.calls.count,
        )
        return mistake, self._write_case(first, mistake.wrong_call)

    @property
    def acting_norms(self) -> ActingNorms:
        """The normalisations that act when all parts are silent."""
        if self.is_post:
            return "all"
        return "last" if {"norm.gamma", "decoder_norm.gamma"} & {*self.base.params} else "none"

    @property
    def is_backward(self) -> bool:
        """Return True if the gradients of the calls are compared."""
        return self.case.cotangent is not None

    def _write_case(self, place: _Place, claim: str) -> str:
        """Write the smallest wrong call as a file of one case."""
        head = CaseHead(f"isolated-{self.case.id}", place.words, self.case.clauses, claim)
        names = (d.output.removeprefix(GRADIENT_OF) for d in self._list_wrong(place.off))
        arguments, outputs = self._apply(place.off), dict.fromkeys(names, np.empty(0))
        cotangent = draw_cotangent(arguments, self.calls) if self.is_backward else None
        call = RecordedCall(self.calls.component, arguments, outputs, cotangent)
        return write_call(head, call, 0, self.calls.bench)

    def _apply(self, off: frozenset[str]) -> Arguments:
        arguments = self.base
        for switch in (switch for id_, switch in self.switches.items() if id_ in off):
            arguments = switch.change(arguments)
        return arguments

    def _list_skeleton(self, left: Arguments) -> None:
        """List the switches of the normalisations of a call, of which the last ones depend on its layers."""
        self.skeleton = list_of_skeleton(left, post=self.is_post)
        self.memory = list_memory_switches(left, post=self.is_post)
        self.switches |= {switch.id: switch for switch in (*self.skeleton, *self.memory)}

    def _is_wrong(self, off: frozenset[str]) -> bool | None:
        """Return True if a judged output of a call is wrong, and None if the call says nothing."""
        if off not in self.tried:
            self.tried[off] = self.calls.find_differences(self._apply(off))
        return None if self.tried[off] is None else any(d.output in self.judged for d in self._list_wrong(off))

    def _list_wrong(self, off: frozenset[str]) -> list[Difference]:
        """Return the wrong outputs of a call that was made, without the gradients of what is silent in it."""
        silent = [part for part in self.parts if part.id in off] if self.is_backward else []
        return [d for d in self.tried[off] or () if not any(_is_of_part(d, part, self.base) for part in silent)]

    def _is_right(self, off: frozenset[str]) -> bool:
        """Return True if a call is right; False also if it says nothing, or no call is left."""
        with suppress(Exhausted):
            return self._is_wrong(off) is False
        return False

    def _find_places(self) -> Iterator[_Place]:
        off = frozenset[str]()
        if not self._is_wrong(off):
            return
        if "bos_id" in self.base.attributes and (loop := self._find_loop()):
            yield loop
            return
        for switch in self.single:
            if self._is_wrong(off | {switch.id}):
                off |= {switch.id}
            elif self._is_right(off | {switch.id}):
                self.holds.append(f"one layer ({switch.words})")
                self.is_later = True
        self._list_skeleton(self._apply(off))
        silent = off | {part.id for part in self.parts}
        for skeleton in (silent, silent | {"uneven"}):
            if self._is_wrong(skeleton):
                yield self._examine((), skeleton)
                return
        if not self.parts[0].is_whole and self._is_right(silent):
            self.holds.append(name_skeleton(self.calls.component, self.acting_norms))
        wrong = list(self._find_wrong_alone(silent))
        if wrong:
            for part in wrong[:_MOST_PLACES]:
                yield self._examine((part,), silent - {part.id, *part.behind})
            return
        for part in self.parts:
            if self._is_wrong(off | {part.id}):
                off |= {part.id}
        yield self._examine([part for part in self.parts if part.id not in off], off)

    def _find_wrong_alone(self, silent: frozenset[str]) -> Iterator[Part]:
        """Yield the parts that are wrong by themselves, and note those that are right."""
        wrong: set[str] = set()
        for part in self.parts:
            # A part that is seen only through a wrong one shows nothing.
            if wrong.isdisjoint(part.behind):
                is_wrong = self._is_wrong(silent - {part.id, *part.behind})
                if is_wrong:
                    wrong.add(part.id)
                    yield part
                elif is_wrong is False and not self._is_convicted(part, silent - {part.id, *part.behind}):
                    self.holds.append(name_alone(part))

    def _is_convicted(self, part: Part, off: frozenset[str]) -> bool:
        """Return True if an output that a part of a layer makes is wrong in a call, such as its weights."""
        return any(MADE_BY.get(d.output, ("",))[0] == part.id for d in self._list_wrong(off))

    def _find_loop(self) -> _Place | None:
        """Return the loop of decoding as the place, if its model, its first word or every word of it is right."""
        shown = self.shown
        one_word = frozenset({"steps"} & self.switches.keys())
        if not shown and self._is_wrong(one_word) and has_scaled_scores(self.calls, self._apply(one_word)):
            shown = SCORE
        if shown:
            off, kept = self._take_out(one_word if shown == SCORE else frozenset(), self.general)
            return _Place("loop", shown, off, kept)
        model_is_right = is_model_right(self.calls, self.base)
        if model_is_right:
            self.holds.append("the model's forward pass on the same words")
        alone = {"steps": "the first word (max_length = 1)", "beams": "one beam (beam_size = 1)"}
        right = [id_ for id_ in alone if id_ in self.switches and self._is_wrong(frozenset({id_})) is False]
        self.holds += [alone[id_] for id_ in right]
        if not (model_is_right or right):
            return None
        start = frozenset({"steps"} & self.switches.keys()) - {*right}
        off, kept = self._take_out(start, [switch for switch in self.general if switch.id != "beams"])
        words = describe_loop(
            first_is_right="steps" in right, model_is_right=model_is_right, one_beam_is_right="beams" in right
        )
        return _Place("loop", words, off, (*kept, *right))

    def _examine(self, acting: Sequence[Part], off: frozenset[str]) -> _Place:
        """Describe a place, which is wrong in a call, so that no output of that call contradicts it."""
        place = self._describe(acting, off)
        wrong = [difference.output for difference in self._list_wrong(place.off)]
        seen = find_contradiction(self.calls.component, place.id, wrong, self.outputs) if self.outputs else None
        return replace(place, id=seen[0], words=seen[1]) if seen else place

    def _describe(self, acting: Sequence[Part], off: frozenset[str]) -> _Place:
        """Describe a place, which is wrong in a call, by what cannot be taken out of the call."""
        details = [s for part in acting for s in part.details] or self.skeleton
        if self.is_backward:
            # A last weight of 0 has a gradient all the same.
            details = [s for s in details if not s.id.endswith(":constant")]
        # The memory shows only through the cross-attention.
        memory = self.memory if any(id_.endswith("cross_attention") for id_ in off) else ()
        probes = [s for part in acting for s in part.probes] if len(acting) == 1 else []
        off, kept = self._take_out(off, [*memory, *self.general, *details])
        kept += tuple(s.id for s in probes if self._is_right(off | {s.id}))
        past = PAST_ATTENTION if "memory" in kept else ""
        if not acting:
            id_, words = describe_skeleton(self.calls.component, self.acting_norms, off, kept)
            return _Place(id_, words + past, off, kept)
        last = sort_by_flow(acting)[-1]
        wrong = [difference.output for difference in self._list_wrong(off)]
        right = {*self.outputs} - {*wrong}
        words = describe_part(last, off, kept, wrong, right) if len(acting) == 1 else describe_group(acting, kept)
        if last.id == "decoder.cross_attention" and len(acting) == 1:
            if wrong[0] in ("source_embedded", "memory"):
                return _Place("encoder", MEMORY, off, kept)
            words += OR_MEMORY
        words += past
        words += LATER if self.is_later else ""
        # A part that adds only a constant is silent but for that.
        needed = [id_ for id_ in kept if not id_.endswith((":constant", ":shift"))]
        silent = [part.id for part in acting if self._is_right(off | {part.id})]
        return _Place(last.id, words, off, (*needed, *silent))

    def _take_out(self, off: frozenset[str], switches: Iterable[Switch]) -> tuple[frozenset[str], tuple[str, ...]]:
        """Take out of a wrong call what it does not need to be wrong; return what is out, and what is needed."""
        needed = []
        with suppress(Exhausted):
            for switch in switches:
                found = self._is_wrong(off | {switch.id}) if off.isdisjoint(switch.instead) else None
                if found:
                    off |= {switch.id}
                elif found is False:
                    needed.append(switch.id)
        # What was taken out later may have changed what an earlier change does.
        return off, tuple(id_ for id_ in needed if self._is_right(off | {id_}))
