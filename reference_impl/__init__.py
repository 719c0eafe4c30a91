"""A Transformer in PyTorch, written to be read.

A computation without parameters is a plain function: softmax, attention, masks, positions, losses. A computation with
parameters is the forward of a module, and stands nowhere else. Its function form, such as multi_head_attention, takes
the parameters as arguments and builds the module from them. Nothing is fused and nothing is fast.

Public functions and modules check their arguments once, and refuse them with a message that says what to do. The
computations in _functional, which functions and modules share, check nothing.

Axes, in comments, docstrings and messages, and their names in the paper:

    batch, heads        heads is h
    q_seq, kv_seq, seq  the lengths; seq where queries and keys are the same sequence
    source_seq          the length of the source, where seq is that of the target
    d_model             d_model, the width of a layer
    d_query, d_key, d_value, d_input    the widths of inputs, where they may differ from it
    d_k, d_v            d_k, d_v, the widths of a query or key and of a value within one head
    d_ff                d_ff, the width inside the feed-forward network
    layers              N, the layers of a stack
    vocab               the rows of the embedding table, the words that logits score
    positions           the rows of a table of learned positions
    max_length          the largest number of words in a decoded sentence
    beams, top_beams    the sentences that beam search keeps at a step, and those that it returns

Vectors are rows: y = x·W + b with W of (in, out), the transpose of nn.Linear's weight.
Masks are boolean, True = may attend.
Layers, stacks and the model take their parameters as one mapping, with the names of the module's state dict:
self_attention.w_q, encoder.0.norm_1.gamma.
Only the modules have dropout, and only in training mode. Modules use PyTorch's own random numbers; random functions
take a seed.

The docstrings name their sources: "walkthrough", "primer", "n9", "java" and "illustrated" are the five documents of
spec/documents.yaml, with the number or the title of a section; "paper" is Vaswani et al., Attention Is All You Need,
2017, arXiv:1706.03762.
"""

from goldformer.reference_impl.beam_search import BeamResult, beam_search
from goldformer.reference_impl.decoder import (
    Decoder,
    DecoderLayer,
    DecoderLayerResult,
    DecoderResult,
    decoder,
    decoder_layer,
)
from goldformer.reference_impl.dropout import dropout
from goldformer.reference_impl.encoder import (
    Encoder,
    EncoderLayer,
    EncoderLayerResult,
    EncoderResult,
    encoder,
    encoder_layer,
)
from goldformer.reference_impl.feed_forward import FeedForward, feed_forward
from goldformer.reference_impl.fused_multi_head_attention import (
    FusedMultiHeadAttention,
    cut_fused,
    fused_multi_head_attention,
)
from goldformer.reference_impl.greedy_decode import GreedyResult, greedy_decode
from goldformer.reference_impl.initialisation import xavier_uniform
from goldformer.reference_impl.layer_norm import LayerNorm, layer_norm
from goldformer.reference_impl.loss import cross_entropy, kl_divergence, label_smoothing, one_hot
from goldformer.reference_impl.masks import causal_mask, padding_mask
from goldformer.reference_impl.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    multi_head_attention,
    project_heads,
    split_heads,
)
from goldformer.reference_impl.output_layer import logits, output_probabilities
from goldformer.reference_impl.positional_encoding import (
    PositionalEncoding,
    positional_encoding,
    sinusoid_table,
)
from goldformer.reference_impl.scaled_dot_product_attention import (
    attention_scores,
    scaled_dot_product_attention,
    scaled_scores,
)
from goldformer.reference_impl.sequences import pad_or_truncate, shift_right
from goldformer.reference_impl.single_head_attention import (
    SingleHeadAttention,
    SingleHeadGradientResult,
    SingleHeadResult,
    SingleHeadStepResult,
    single_head_attention,
    single_head_attention_gradient,
    single_head_attention_step,
)
from goldformer.reference_impl.softmax import log_softmax, softmax
from goldformer.reference_impl.token_embedding import TokenEmbedding, token_embedding
from goldformer.reference_impl.transformer import Transformer, TransformerResult, transformer

__all__ = [
    "BeamResult",
    "Decoder",
    "DecoderLayer",
    "DecoderLayerResult",
    "DecoderResult",
    "Encoder",
    "EncoderLayer",
    "EncoderLayerResult",
    "EncoderResult",
    "FeedForward",
    "FusedMultiHeadAttention",
    "GreedyResult",
    "LayerNorm",
    "MultiHeadAttention",
    "PositionalEncoding",
    "SingleHeadAttention",
    "SingleHeadGradientResult",
    "SingleHeadResult",
    "SingleHeadStepResult",
    "TokenEmbedding",
    "Transformer",
    "TransformerResult",
    "attention_scores",
    "beam_search",
    "causal_mask",
    "cross_entropy",
    "cut_fused",
    "decoder",
    "decoder_layer",
    "dropout",
    "encoder",
    "encoder_layer",
    "feed_forward",
    "fused_multi_head_attention",
    "greedy_decode",
    "kl_divergence",
    "label_smoothing",
    "layer_norm",
    "log_softmax",
    "logits",
    "merge_heads",
    "multi_head_attention",
    "one_hot",
    "output_probabilities",
    "pad_or_truncate",
    "padding_mask",
    "positional_encoding",
    "project_heads",
    "scaled_dot_product_attention",
    "scaled_scores",
    "shift_right",
    "single_head_attention",
    "single_head_attention_gradient",
    "single_head_attention_step",
    "sinusoid_table",
    "softmax",
    "split_heads",
    "token_embedding",
    "transformer",
    "xavier_uniform",
]
