"""The adapter of the NumPy textbook: its components, as they are."""

from typing import Final

from goldformer import __version__
from goldformer.adapters.textbook import Textbook

NAME: Final = "textbook"
VERSION: Final = __version__
ARRAYS: Final = Textbook.ARRAYS
DTYPES: Final = ("float64", "float32", "float16")

_textbook: Final = Textbook()

softmax = _textbook.softmax
scaled_dot_product_attention = _textbook.scaled_dot_product_attention
causal_mask = _textbook.causal_mask
padding_mask = _textbook.padding_mask
token_embedding = _textbook.token_embedding
positional_encoding = _textbook.positional_encoding
multi_head_attention = _textbook.multi_head_attention
fused_multi_head_attention = _textbook.fused_multi_head_attention
single_head_attention = _textbook.single_head_attention
single_head_attention_step = _textbook.single_head_attention_step
feed_forward = _textbook.feed_forward
layer_norm = _textbook.layer_norm
encoder_layer = _textbook.encoder_layer
decoder_layer = _textbook.decoder_layer
encoder = _textbook.encoder
decoder = _textbook.decoder
pad_or_truncate = _textbook.pad_or_truncate
shift_right = _textbook.shift_right
one_hot = _textbook.one_hot
label_smoothing = _textbook.label_smoothing
transformer = _textbook.transformer
output_probabilities = _textbook.output_probabilities
greedy_decode = _textbook.greedy_decode
beam_search = _textbook.beam_search
cross_entropy = _textbook.cross_entropy
kl_divergence = _textbook.kl_divergence
xavier_uniform = _textbook.xavier_uniform
dropout = _textbook.dropout

softmax_gradient = _textbook.softmax_gradient
scaled_dot_product_attention_gradient = _textbook.scaled_dot_product_attention_gradient
token_embedding_gradient = _textbook.token_embedding_gradient
multi_head_attention_gradient = _textbook.multi_head_attention_gradient
fused_multi_head_attention_gradient = _textbook.fused_multi_head_attention_gradient
single_head_attention_gradient = _textbook.single_head_attention_gradient
feed_forward_gradient = _textbook.feed_forward_gradient
layer_norm_gradient = _textbook.layer_norm_gradient
encoder_layer_gradient = _textbook.encoder_layer_gradient
decoder_layer_gradient = _textbook.decoder_layer_gradient
encoder_gradient = _textbook.encoder_gradient
decoder_gradient = _textbook.decoder_gradient
transformer_gradient = _textbook.transformer_gradient
output_probabilities_gradient = _textbook.output_probabilities_gradient
kl_divergence_gradient = _textbook.kl_divergence_gradient
cross_entropy_gradient = _textbook.cross_entropy_gradient
