from __future__ import annotations

import torch
from solution.layers import (
    CausalSelfAttention,
    Embedding,
    RMSNorm,
    RoPE,
    SwiGLU,
    TransformerBlock,
    TransformerLM,
    attention,
    cross_entropy,
    softmax,
)
from torch import Tensor


def run_embedding(vocab_size: int, d_model: int, weights: Tensor, token_ids: Tensor) -> Tensor:
    layer = Embedding(vocab_size, d_model)
    layer.load_state_dict({"weight": weights})
    return layer(token_ids)


def run_swiglu(d_model, d_ff, w1_weight, w2_weight, w3_weight, in_features):
    layer = SwiGLU(d_model, d_ff)
    layer.w1.weight.data = w1_weight
    layer.w2.weight.data = w2_weight
    layer.w3.weight.data = w3_weight
    return layer(in_features)


def run_scaled_dot_product_attention(Q, K, V, mask=None):
    return attention(Q, K, V, mask)


def run_multihead_self_attention(
    d_model, num_heads, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight, in_features
):
    layer = CausalSelfAttention(d_model, num_heads)
    with torch.no_grad():
        layer.q_proj.weight.copy_(q_proj_weight)
        layer.k_proj.weight.copy_(k_proj_weight)
        layer.v_proj.weight.copy_(v_proj_weight)
        layer.output_proj.weight.copy_(o_proj_weight)
    return layer(in_features)


def run_rope(d_k, theta, max_seq_len, in_query_or_key, token_positions):
    return RoPE(theta, d_k, max_seq_len)(in_query_or_key, token_positions)


def run_rmsnorm(d_model, eps, weights, in_features):
    layer = RMSNorm(d_model, eps)
    layer.load_state_dict({"weight": weights})
    return layer(in_features)


def run_softmax(in_features, dim):
    return softmax(in_features, dim)


def run_cross_entropy(inputs, targets):
    return cross_entropy(inputs, targets)


def run_transformer_block(d_model, num_heads, d_ff, max_seq_len, theta, weights, in_features):
    block = TransformerBlock(d_model, num_heads, d_ff, max_seq_len, theta)
    block.load_state_dict(weights)
    return block(in_features)


def run_transformer_lm(
    vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta, weights, in_indices
):
    model = TransformerLM(vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta)
    model.load_state_dict(weights)
    return model(in_indices)


def run_get_lr_cosine_schedule(*args, **kwargs):
    raise NotImplementedError
