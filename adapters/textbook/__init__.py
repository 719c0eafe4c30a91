"""The Transformer in plain NumPy: one small function for each step, to be read next to the clauses.

It is an independent witness: a mistake in a formula that it shared with the oracle or the reference would be in the
golden values and in the code compared with them, and no case would fail. So it is written from the clauses only, and
in other ways: heads are cut out and put back one by one, the positional encoding is written channel by channel.

Results keep the dtype of the inputs: every constant is a Python float, which promotes nothing. Positional encoding and
layer normalisation, which are computed in a wider dtype, are rounded to it. So a mistake that replaces a step rounds as
other people's code does; the oracle cannot do that.

A known mistake is one step replaced, everywhere or in one place. The package itself exports the components.

steps            mark a function as a step, and replace it
build            make an adapter of the textbook with steps replaced
checks           check axes, ids and masks
randomness       Xavier-uniform weights and dropout
attention        softmax, scaled dot-product attention and masks
embedding        token embedding and positional encoding
heads            multi-head attention, fused and separate, and single-head attention
layers           feed-forward network, layer normalisation, encoder and decoder
model            the whole model and its output layer
targets, losses  lengths and targets; cross-entropy and Kullback–Leibler divergence
decoding         greedy decoding and beam search
backward, layers_backward  backward passes by hand, and the training steps of the java class
"""

from goldformer.adapters.textbook.layers_backward import (
    decoder_gradient,
    decoder_layer_gradient,
    encoder_gradient,
    encoder_layer_gradient,
    fused_multi_head_attention_gradient,
    multi_head_attention_gradient,
    output_probabilities_gradient,
    transformer_gradient,
)
from goldformer.adapters.textbook.rms_backward import rms_norm_gradient
from goldformer.spec.formulas.attention import causal_mask, padding_mask, scaled_dot_product_attention, softmax
from goldformer.spec.formulas.backward import (
    cross_entropy_gradient,
    feed_forward_gradient,
    kl_divergence_gradient,
    layer_norm_gradient,
    scaled_dot_product_attention_gradient,
    single_head_attention_gradient,
    single_head_attention_step,
    softmax_gradient,
    token_embedding_gradient,
)
from goldformer.spec.formulas.decoding import beam_search, greedy_decode
from goldformer.spec.formulas.embedding import positional_encoding, token_embedding
from goldformer.spec.formulas.heads import (
    fused_multi_head_attention,
    multi_head_attention,
    single_head_attention,
)
from goldformer.spec.formulas.layers import decoder, decoder_layer, encoder, encoder_layer, feed_forward, layer_norm
from goldformer.spec.formulas.losses import cross_entropy, kl_divergence
from goldformer.spec.formulas.randomness import dropout, xavier_uniform
from goldformer.spec.formulas.rms import rms_norm
from goldformer.spec.formulas.targets import label_smoothing, one_hot, pad_or_truncate, shift_right
from goldformer.spec.formulas.transformer import output_probabilities, transformer

__all__ = [
    "beam_search",
    "causal_mask",
    "cross_entropy",
    "cross_entropy_gradient",
    "decoder",
    "decoder_gradient",
    "decoder_layer",
    "decoder_layer_gradient",
    "dropout",
    "encoder",
    "encoder_gradient",
    "encoder_layer",
    "encoder_layer_gradient",
    "feed_forward",
    "feed_forward_gradient",
    "fused_multi_head_attention",
    "fused_multi_head_attention_gradient",
    "greedy_decode",
    "kl_divergence",
    "kl_divergence_gradient",
    "label_smoothing",
    "layer_norm",
    "layer_norm_gradient",
    "multi_head_attention",
    "multi_head_attention_gradient",
    "one_hot",
    "output_probabilities",
    "output_probabilities_gradient",
    "pad_or_truncate",
    "padding_mask",
    "positional_encoding",
    "rms_norm",
    "rms_norm_gradient",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_gradient",
    "shift_right",
    "single_head_attention",
    "single_head_attention_gradient",
    "single_head_attention_step",
    "softmax",
    "softmax_gradient",
    "token_embedding",
    "token_embedding_gradient",
    "transformer",
    "transformer_gradient",
    "xavier_uniform",
]
