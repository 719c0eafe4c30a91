"""A Transformer in PyTorch, written to be read.

Every component is a plain function, written out in the order in which the data flows; the modules only hold
its parameters. Nothing is fused and nothing is fast.

Axes, in comments, docstrings and messages, and what the paper calls them:

    batch, heads        heads is h
    q_seq, kv_seq, seq  the lengths; seq where queries and keys are the same sequence
    d_model             d_model, the width of a layer
    d_query, d_key, d_value, d_input    the widths of inputs, where they may differ from it
    d_k, d_v            d_k, d_v, the widths of a query or key and of a value within one head
    vocab               the rows of the embedding table

Vectors are rows: y = x·W + b with W of (in, out), the transpose of nn.Linear's weight.
Masks are boolean, True = may attend.

The sources, by the names the docstrings use: "walkthrough", "primer", "n9", "java" and "illustrated" are the
five documents of spec/documents.yaml, with the number or the title of a section; "paper" is Vaswani et al.,
Attention Is All You Need, 2017, arXiv:1706.03762.
"""

from goldformer.reference_impl.fused_multi_head_attention import (
    FusedMultiHeadAttention,
    fused_multi_head_attention,
)
from goldformer.reference_impl.masks import causal_mask, padding_mask
from goldformer.reference_impl.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    multi_head_attention,
    split_heads,
)
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
from goldformer.reference_impl.single_head_attention import (
    SingleHeadAttention,
    SingleHeadResult,
    single_head_attention,
)
from goldformer.reference_impl.softmax import softmax
from goldformer.reference_impl.token_embedding import TokenEmbedding, token_embedding

__all__ = [
    "FusedMultiHeadAttention",
    "MultiHeadAttention",
    "PositionalEncoding",
    "SingleHeadAttention",
    "SingleHeadResult",
    "TokenEmbedding",
    "attention_scores",
    "causal_mask",
    "fused_multi_head_attention",
    "merge_heads",
    "multi_head_attention",
    "padding_mask",
    "positional_encoding",
    "scaled_dot_product_attention",
    "scaled_scores",
    "single_head_attention",
    "sinusoid_table",
    "softmax",
    "split_heads",
    "token_embedding",
]
