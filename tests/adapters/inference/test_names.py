"""The words that people use, and the roles that they say."""

from __future__ import annotations

import pytest

from goldformer.adapters.inference.names import ARGUMENTS, SIZES, find_part, find_projection, list_roles

#: Names of constructors in public code, by role.
CONSTRUCTORS = {
    "width": "d_model embed_dim embed_size emb model_dim num_hiddens n_embd n_embed dim features size",
    "heads": "h heads n_head num_heads nhead n_heads "
    "attn_heads num_attention_heads number_of_heads head_num t_enc_heads enc_heads",
    "head_width": "d_k d_key d_head d_attention dim_head head_dim head_size dim_per_head dim_keys "
    "d_query_key_head q_k_size",
    "value_width": "d_v d_value dim_values d_value_head v_size",
    "inner": "d_ff dim_feedforward ffn_dim ffn_hidden intermediate_size "
    "filter_size d_inner pf_dim ffn_num_hiddens d_ff_inner f_size hidden_size_ff dim_ff",
    "expansion": "forward_expansion expansion mlp_ratio ff_mult",
    "vocab": "vocab vocab_size n_tokens ntoken num_embeddings n_vocab",
    "source_vocab": "src_vocab src_vocab_size source_vocab n_src_vocab num_tokens_src",
    "target_vocab": "tgt_vocab tgt_vocab_size trg_vocab_size n_trg_vocab",
    "layers": "N n_layers num_layers n_layer depth num_blocks",
    "encoder_layers": "num_encoder_layers n_enc_layers enc_layers n_enc_layer enc_num_layer",
    "decoder_layers": "num_decoder_layers n_dec_layers n_dec_layer dec_num_layer",
    "positions": "max_len max_length max_seq_length block_size "
    "seq_len context_length max_position_embeddings n_position",
    "word_width": "d_word_vec d_word word_dim",
    "pad": "pad_id pad_idx src_pad_idx padding_idx pad_token_id",
}

PROJECTIONS = {
    "q": "w_q W_Q wq weight_q q_linear linear_q query queries query_proj w_qs toqueries to_q q_proj proj_q",
    "k": "w_k W_K wk k_linear key keys key_projection w_ks tokeys to_k k_proj",
    "v": "w_v v_linear value values value_proj w_vs tovalues to_v v_proj",
    "kv": "to_kv kv kv_proj",
    "qkv": "qkv Wqkv to_qkv qkv_proj in_proj c_attn kqv",
}


def pairs(words):
    return [(name, role) for role, names in words.items() for name in names.split()]


@pytest.mark.parametrize(("name", "role"), pairs(CONSTRUCTORS))
def test_a_name_of_a_constructor_says_its_size(name, role):
    assert list_roles(name, SIZES)[:1] == [role]


def test_a_hidden_width_may_be_that_of_the_model():
    assert list_roles("hidden_size", SIZES) == ["inner", "width"]


@pytest.mark.parametrize(("name", "role"), pairs(PROJECTIONS))
def test_a_name_of_a_parameter_says_its_projection(name, role):
    assert find_projection(name) == role


@pytest.mark.parametrize("name", ["a", "linears", "0", "w", "out", "fc", "unifyheads", "linear_final", "dense", "proj"])
def test_other_names_say_no_projection_of_the_input(name):
    assert find_projection(name) is None


@pytest.mark.parametrize(
    ("name", "role"),
    [("mask", "mask"), ("src_key_padding_mask", "mask"), ("valid_lens", "mask"), ("q", "query"), ("x_kv", "memory"),
     ("queries", "query"), ("V", "value"), ("keys", "key"), ("encoder_output", "memory"), ("trg", "target")],
)  # fmt: skip
def test_a_name_of_a_call_says_its_input(name, role):
    assert list_roles(name, ARGUMENTS)[:1] == [role]


@pytest.mark.parametrize("name", ["x", "inputs", "hidden_states", "tokens"])
def test_a_name_without_a_meaning_says_nothing(name):
    assert list_roles(name, ARGUMENTS) == []


@pytest.mark.parametrize(
    ("name", "is_cache"),
    [("cache", True), ("layer_past", True), ("past_key_values", True), ("kv_cache", True), ("key_value", False)],
)
def test_a_name_says_a_cache(name, is_cache):
    assert ("cache" in list_roles(name, ARGUMENTS)) == is_cache


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("self_attn.linears.0", "self"),
        ("src_attn.linears.0", "cross"),
        ("crossAttention.q", "cross"),
        ("ffn.w_1", "feed"),
        ("attn_norm", "self"),
        ("feed_forward_norm", "feed"),
        ("enc_dec_attention", "cross"),
        ("norm", None),
    ],
)
def test_a_path_says_the_part_of_a_layer(path, part):
    assert find_part(path) == part
