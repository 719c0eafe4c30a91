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

from collections.abc import Callable, Mapping
from typing import Any, Final

from goldformer.spec.formulas.attention import causal_mask, padding_mask, scaled_dot_product_attention, softmax
from goldformer.spec.formulas.backward import single_head_attention_step
from goldformer.spec.formulas.cached import attend_with_cache, cached_attention
from goldformer.spec.formulas.cached_model import cached_model, continue_model
from goldformer.spec.formulas.decoder_only import decoder_only_layer, decoder_only_model
from goldformer.spec.formulas.decoding import beam_search, greedy_decode
from goldformer.spec.formulas.distance import alibi_bias, position_ids, sliding_window_mask
from goldformer.spec.formulas.embedding import positional_encoding, token_embedding
from goldformer.spec.formulas.experts import expert_feed_forward, expert_router
from goldformer.spec.formulas.gated import gated_feed_forward
from goldformer.spec.formulas.generation import generate
from goldformer.spec.formulas.grouped import grouped_query_attention
from goldformer.spec.formulas.heads import fused_multi_head_attention, multi_head_attention, single_head_attention
from goldformer.spec.formulas.layers import decoder, decoder_layer, encoder, encoder_layer, feed_forward, layer_norm
from goldformer.spec.formulas.losses import cross_entropy, kl_divergence
from goldformer.spec.formulas.randomness import dropout, xavier_uniform
from goldformer.spec.formulas.rms import rms_norm
from goldformer.spec.formulas.rope import rotary_embedding
from goldformer.spec.formulas.sampling import token_filter
from goldformer.spec.formulas.targets import label_smoothing, one_hot, pad_or_truncate, shift_right
from goldformer.spec.formulas.transformer import output_probabilities, transformer

#: The formula of each component, by its name.
COMPONENTS: Final[Mapping[str, Callable[..., Any]]] = {
    component.__name__: component
    for component in (
        alibi_bias, beam_search, cached_attention, cached_model, causal_mask, cross_entropy, decoder, decoder_layer,
        decoder_only_layer, decoder_only_model, dropout, encoder, encoder_layer, expert_feed_forward, expert_router,
        feed_forward, fused_multi_head_attention, gated_feed_forward, generate, greedy_decode, grouped_query_attention,
        kl_divergence, label_smoothing, layer_norm, multi_head_attention, one_hot, output_probabilities,
        pad_or_truncate, padding_mask, position_ids, positional_encoding, rms_norm, rotary_embedding,
        scaled_dot_product_attention, shift_right, single_head_attention, single_head_attention_step,
        sliding_window_mask, softmax, token_embedding, token_filter, transformer, xavier_uniform,
    )
}  # fmt: skip

#: One call of each component that is called several times, which `COMPONENTS` has over all calls.
SESSION_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "cached_attention": attend_with_cache,
    "cached_model": continue_model,
}

#: The outputs of those that do not return them by name.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "alibi_bias": ("bias",),
    "position_ids": ("positions",),
    "cached_model": ("logits",),
    "causal_mask": ("mask",),
    "padding_mask": ("mask",),
    "sliding_window_mask": ("mask",),
    "feed_forward": ("output", "hidden"),
}


def name_outputs(component: str, returned: Any) -> dict[str, Any]:
    """Return what the formula of a component returned as a mapping by the names of its outputs."""
    if isinstance(returned, Mapping):
        return dict(returned)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(_NAMES.get(component, ("output",)), outputs, strict=True))
