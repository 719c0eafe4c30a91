"""Sentences about a place: what is wrong there, and what is right."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

from goldformer.conformance.diagnosis.isolation.switches import Part, Switch
from goldformer.conformance.judging.measure import describe_values
from goldformer.conformance.judging.verdict import Difference
from goldformer.conformance.properties.relations import join_names

#: The name of what is left of a component when all its parts are silent, and its id.
SKELETON = "skeleton"
#: What is added to a place that is right where there is one layer.
LATER = ", in the layers after the first"
#: The place of a mistake that shows in the memory while all parts of the encoder are silent.
MEMORY = "the memory: the source's embedding, or the encoder's residuals and normalisations"
#: What is added to a place that is wrong only where there is a memory, although the cross-attention is silent.
PAST_ATTENTION = ", which the memory reaches past the cross-attention"
#: What is added to the decoder's cross-attention where nobody sees the memory.
OR_MEMORY = ", or the memory that it reads"
#: The place of a mistake in decoding if all words that come back are right, and the last ones are missing.
CUT_SHORT = "the loop of decoding: where a sentence ends, or which of its words are returned"
#: The same where all wrong words stand behind the end of a sentence.
BEHIND_THE_END = "the loop of decoding: what it writes behind the end of a sentence"
#: The same if all words are right, and their scores are wrong by one factor.
SCORE = "the score of a sentence: the sum of its words' log-probabilities, or the penalty that divides it"
#: The part that makes an output of a layer, and what is wrong if it is the first wrong one.
_BEFORE_WEIGHTS: Final = "the queries, keys, scores or mask"
_AFTER_WEIGHTS: Final = "the values, the heads or the output"
_AROUND: Final = "or the residual and normalisation around it"
MADE_BY: Final[Mapping[str, tuple[str, str]]] = {
    "weights": ("self_attention", f"{_BEFORE_WEIGHTS} of the self-attention"),
    "attended": ("self_attention", f"{_AFTER_WEIGHTS} of the self-attention, {_AROUND}"),
    "cross_weights": ("cross_attention", f"{_BEFORE_WEIGHTS} of the cross-attention"),
    "crossed": ("cross_attention", f"{_AFTER_WEIGHTS} of the cross-attention, {_AROUND}"),
    "output": ("feed_forward", f"the feed-forward network, {_AROUND}"),
}
#: The outputs of layers as data flows to them.
_FLOW: Final = tuple(MADE_BY)
_LAYERS: Final = ("encoder_layer", "decoder_layer")
#: The components whose results go through an embedding and an output layer.
WHOLE_MODELS: Final = frozenset({"transformer", "greedy_decode", "beam_search"})
#: Which normalisations act when all parts are silent. One that only a part reads does not.
ActingNorms = Literal["all", "last", "none"]
_NORMS: Final[Mapping[ActingNorms, str]] = {"all": "normalisations", "last": "last normalisation"}


def name_skeleton(component: str, norms: ActingNorms) -> str:
    """Return the name of what acts in a component when all its parts are silent."""
    if component in ("multi_head_attention", "fused_multi_head_attention"):
        return "what is added to the output without passing w_o"
    if component in WHOLE_MODELS:
        middle = f", the {_NORMS[norms]}" if norms in _NORMS else ""
        return f"the embedding{middle} and the output layer"
    return f"the residuals and {_NORMS[norms]}" if norms in _NORMS else "the residuals"


def describe_skeleton(
    component: str, norms: ActingNorms, off: Collection[str], kept: Collection[str]
) -> tuple[str, str]:
    """Return the id and the name of the place of a mistake that shows when all parts are silent."""
    after, before = _list_cut_norms(off), _list_cut_norms(kept)
    if component not in WHOLE_MODELS:
        where = f", after {after[-1]}" if after else f", up to {before[0]}" if before else ""
        return SKELETON, f"{name_skeleton(component, norms)}{where}"
    # The first that fits: a later one is less special.
    fitting = {
        ("output_layer", "the output layer, or what lies between it and the last normalisation"): after,
        (SKELETON, "the decoder's embedding, residuals or normalisations"): "memory" in kept,
        ("embedding", "the token embedding"): {"ids", "words:table"} & {*kept},
        ("positions", "the positional encoding, or how a position reaches a word"): "words:seq" in kept,
        ("positions", "the positional encoding, or the normalisations and what lies around them"): "words:table" in off,
        (SKELETON, name_skeleton(component, norms)): True,
    }
    return next(place for place, fits in fitting.items() if fits)


def describe_part(
    part: Part, off: Collection[str], kept: Collection[str], wrong: Sequence[str], right: Collection[str]
) -> str:
    """Return the name of the place of a mistake in a part, which is wrong by itself; outputs are `wrong` or `right`."""
    if f"{part.id}:constant" in off:
        return f"the output bias of {part.words}, or the residual and normalisation around it"
    # A limit is not reached by small numbers either; a shift is there whatever their size.
    if [id_ for id_ in kept if id_ in {probe.id for probe in part.probes}] == [f"{part.id}:shift"]:
        return f"what reaches {part.words}: a normalisation or residual before it adds to all channels"
    if part.kind == "feed_forward":
        clipped = {f"{part.id}:negative", f"{part.id}:size"} & {*kept}
        return f"the activation of {part.words}" if clipped else part.words
    return f"{_name_step(part, off, kept, wrong, right)} of {part.words}"


def _name_step(
    attention: Part, off: Collection[str], kept: Collection[str], wrong: Sequence[str], right: Collection[str]
) -> str:
    """Return the name of the step of an attention that a wrong call shows."""
    weights = "cross_weights" if attention.id == "cross_attention" else "weights"
    if weights in right:
        return _AFTER_WEIGHTS
    if f"{attention.id}:weights" in kept:
        past = f"{attention.id}:keys" in off and weights not in wrong
        return (
            "the output, which the queries reach without passing the scores," if past else "the queries, keys or scores"
        )
    if any(id_.startswith("mask:") for id_ in kept):
        return "the mask"
    if weights in wrong:
        return _BEFORE_WEIGHTS
    # A single key has the weight 1, whatever the scores. Heads that are mixed with tokens, and keys and values that are
    # made of several rows, show only among several too.
    if {f"words:{a}" for a in attention.key_axes} & {*kept}:
        merged = ", the cut or merge of the heads" if "heads" in kept else ""
        return f"the weights{merged} or the rows of the keys and values"
    return _AFTER_WEIGHTS


def find_contradiction(
    component: str, id_: str, wrong: Sequence[str], outputs: Sequence[str]
) -> tuple[str, str] | None:
    """Return the place that the outputs of a call show, if a place with this id is another one; None if it is not.

    `outputs` are those that the call returns, as data flows to them. An output that is right acquits what lies before
    it, and the first wrong one convicts what lies between it and the one before.
    """
    first, *_ = wrong
    if outputs[-1] not in wrong:
        return (MADE_BY[first][0] if component in _LAYERS else id_, f"what is returned as {first}: the output is right")
    if component in _LAYERS and first in MADE_BY:
        # Of what lies before it only what the call returns is known.
        before = [name for name in _FLOW if name in outputs[: outputs.index(first)]]
        made = [
            MADE_BY[name][0] for name in _FLOW[_FLOW.index(before[-1]) + 1 if before else 0 : _FLOW.index(first) + 1]
        ]
        may_be = {*made, *(() if first.endswith("weights") else (SKELETON,))}
        return None if id_ in may_be else MADE_BY[first]
    return None


def describe_group(group: Sequence[Part], kept: Collection[str]) -> str:
    """Return the name of the place of a mistake that shows only when several parts act."""
    *others, last = sort_by_flow(group)
    read = "the queries of" if f"{last.id}:weights" in kept else "what reaches"
    return f"{read} {last.words} when {join_names([part.words for part in others])} acts too"


def describe_loop(*, first_is_right: bool, model_is_right: bool | None, one_beam_is_right: bool) -> str:
    """Return the name of the place of a mistake in decoding, given what is right: its first word, its model, one beam.

    `model_is_right` is None if that is not known.
    """
    if model_is_right is False and not one_beam_is_right:
        return "the model's forward pass on several words, also outside the loop"
    loop, of_beams = "the loop of decoding", " of several beams" if one_beam_is_right else ""
    if first_is_right:
        return f"{loop}: what it carries{of_beams} from one word to the next"
    return f"{loop}: how it {'ranks or keeps several beams' if one_beam_is_right else 'scores or chooses a word'}"


def name_alone(part: Part) -> str:
    """Return the name of a part that acts by itself, or only through another one."""
    return f"{part.words} through the decoder's cross-attention" if part.behind else part.words


def sort_by_flow(parts: Sequence[Part]) -> list[Part]:
    """Return parts in the order in which data flows through them: those of the encoder first."""
    return sorted(parts, key=lambda part: part.id.startswith("decoder."))


def describe_call(case: str, off: Collection[str], switches: Mapping[str, Switch], parts: Sequence[Part]) -> str:
    """Describe a call: the case that it begins with, and what holds after its switches."""
    silent = [part.id for part in parts if part.id in off and not part.is_whole]
    changes = [switch.words for id_, switch in switches.items() if id_ in off and id_ not in silent]
    if silent:
        which = "all parts" if len(silent) == len(parts) else join_names(silent)
        changes.append(f"{which} silent (last weights and biases 0)")
    return f"{case} with {', '.join(changes)}" if changes else case


def describe_element(difference: Difference) -> str:
    """Describe the first wrong element of an output."""
    first = difference.first
    assert first is not None, "it is wrong"
    return f"{difference.output}{list(first.index)}: {describe_values(first)}"


def _list_cut_norms(ids: Collection[str]) -> list[str]:
    """Return the normalisations whose gain is 0 under some switches, in order."""
    return sorted(id_[len("cut:") :].removesuffix(".gamma") for id_ in ids if id_.startswith("cut:"))
