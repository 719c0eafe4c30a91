"""A Transformer in PyTorch, written to be read: transformer.py has all of it, from softmax to the model, on one page.

decoder_only.py has what today's models have in its place.

Axes in signatures and messages, and their names in the paper:

    batch, heads        heads is h
    kv_heads            the heads of keys and values, where query heads share them
    q_seq, kv_seq, seq  the lengths; seq where queries and keys are the same sequence
    new, so_far         the tokens of one call, and those with the ones of earlier calls
    source_seq          the length of the source, where seq is that of the target
    d_model, d_ff       the width of a layer, and the width inside the feed-forward network
    d_query, d_key, d_value, d_input    the widths of inputs, where they may differ from d_model
    d_k, d_v            the widths of a query or key and of a value within one head
    layers              N, the layers of a stack
    vocab, positions    the rows of the embedding table, and of a table of learned positions
    max_length          the largest number of words in a decoded sentence
    max_new_tokens      the largest number of tokens after a prompt
    beams, top_beams    the sentences that beam search keeps at a step, and those that it returns

"walkthrough", "primer", "n9", "java" and "illustrated" are the five documents of spec/documents.yaml, with the number
or the title of a section; "paper" is Vaswani et al., Attention Is All You Need, 2017, arXiv:1706.03762.
"""

from goldformer.reference_impl.decoder_only import Cache, DecoderOnlyLayer, DecoderOnlyModel, ExpertFeedForward
from goldformer.reference_impl.decoder_only import GatedFeedForward, ModelState, RMSNorm, alibi_bias, cached_attention
from goldformer.reference_impl.decoder_only import expert_router, generate, grouped_query_attention, position_ids
from goldformer.reference_impl.decoder_only import repeat_heads
from goldformer.reference_impl.decoder_only import rotary_embedding, scale_frequencies, sliding_window_mask
from goldformer.reference_impl.decoder_only import token_filter
from goldformer.reference_impl.decoding import BeamResult, GreedyResult, beam_search, greedy_decode
from goldformer.reference_impl.losses import cross_entropy, kl_divergence, label_smoothing, log_softmax, one_hot
from goldformer.reference_impl.losses import shift_right
from goldformer.reference_impl.parts import DecoderLayerResult, DecoderOnlyLayerResult, DecoderOnlyModelResult
from goldformer.reference_impl.parts import Dropout, EncoderLayerResult, ExpertsResult
from goldformer.reference_impl.parts import GatedResult, StackResult, TransformerResult, dropout, xavier_uniform
from goldformer.reference_impl.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward, LayerNorm
from goldformer.reference_impl.transformer import MultiHeadAttention, Transformer, attention_scores, causal_mask
from goldformer.reference_impl.transformer import merge_heads, padding_mask, positional_encoding, scaled_scores
from goldformer.reference_impl.transformer import scaled_dot_product_attention, sinusoid_table, softmax, split_heads
from goldformer.reference_impl.transformer import token_embedding
from goldformer.reference_impl.variants import FusedMultiHeadAttention, SingleHeadAttention, SingleHeadResult
from goldformer.reference_impl.variants import cut_fused, move_weights, output_probabilities, pad_or_truncate

__all__ = [
    "BeamResult", "Cache", "Decoder", "DecoderLayer", "DecoderLayerResult", "DecoderOnlyLayer",
    "DecoderOnlyLayerResult", "DecoderOnlyModel", "DecoderOnlyModelResult", "Dropout", "Encoder", "EncoderLayer",
    "EncoderLayerResult", "ExpertFeedForward", "ExpertsResult", "FeedForward", "FusedMultiHeadAttention",
    "GatedFeedForward", "GatedResult", "GreedyResult", "LayerNorm", "ModelState", "MultiHeadAttention", "RMSNorm",
    "SingleHeadAttention", "SingleHeadResult", "StackResult", "Transformer", "TransformerResult", "alibi_bias",
    "attention_scores", "beam_search", "cached_attention", "causal_mask", "cross_entropy", "cut_fused", "dropout",
    "expert_router", "generate", "greedy_decode",
    "grouped_query_attention", "kl_divergence", "label_smoothing", "log_softmax", "merge_heads", "move_weights",
    "one_hot", "output_probabilities", "pad_or_truncate", "padding_mask", "position_ids",
    "positional_encoding",
    "repeat_heads", "rotary_embedding", "scale_frequencies", "scaled_dot_product_attention", "scaled_scores",
    "shift_right", "sinusoid_table", "sliding_window_mask", "softmax", "split_heads", "token_embedding",
    "token_filter", "xavier_uniform",
]  # fmt: skip
