"""The names that people give to sizes, arguments and parameters, as patterns for the roles that they say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_WIDTH: Final = r"(d|dim|emb|embed|embedding|hidden|model|features?|size|width|channels|units|state)"

#: The sizes of a constructor by role. A name may say several roles; their order is that of likelihood.
SIZES: Final[Mapping[str, str]] = {
    "heads": (
        r"h|n?_?heads?|(num|n|number)(_of)?(_attention|_attn)?_?heads?|attn_heads|head_num|num_attention_heads|"
        r"((t|n|num)_)?(enc|dec|encoder|decoder)_heads|t_heads"
    ),
    "kv_heads": r"(n|num)?_?(kv|key_value|query)_?(heads?|groups?)|n_local_heads",
    "temperature": r"temperature|temp|sqrt_d_?k",
    "head_width": (
        r"d_?[kq]|d_?head|d_(query|key|qk|query_key)_head|d_att(n|ention)|d_key|d_query|d_qk|d_kv|"
        r"dim_?(per_)?head|head_?(dim|size|width)|(dim|size)_per_head|dim_k(eys?)?|q_k_size|qk_size"
    ),
    "value_width": r"d_?v|d_value(_head)?|dim_v(alues?)?|v_dim|v_size",
    "input_width": r"(input|in)_?(dim|size|features|channels)|(dim|d)_in|d_input",
    "expansion": r"(forward_)?expansion(_factor)?|(ff_?|ffn_?)?mult|mlp_ratio|widen(ing)?(_factor)?",
    "inner": (
        r"d_?ff(_inner)?|d_?ffn|f_size|dim_?feed_?forward|(ff|ffn|mlp|feed_?forward|pf|filter|intermediate|inner)_?"
        r"(hidden_)?(dim|size|width|units|hidden|hiddens|num_hiddens)?|d_(inner|hidden|mlp)|hidden|hidden_?(dim|size|units)|"
        r"(hidden_?)?(dim|size|width|units|hidden)_?(ff|ffn|mlp|feed_?forward)"
    ),
    "source_vocab": (
        r"(src|source|input|enc|encoder)_?(vocab|voc|tokens)(_?(size|len))?|n_src_vocab|(src|source)_size|"
        r"(n|num)_?(vocab|tokens)_?(src|source)"
    ),
    "target_vocab": (
        r"(tgt|trg|target|output|dec|decoder)_?(vocab|voc|tokens)(_?(size|len))?|n_(trg|tgt)_vocab|(tgt|target)_size|"
        r"(n|num)_?(vocab|tokens)_?(tgt|trg|target)"
    ),
    "vocab": r"(n_?|num_?)?(vocab|vocabulary|tokens?|embeddings|words)(_?(size|len))?|ntokens?",
    "encoder_layers": r"(n|num)_?enc(oder)?_?(layer|block)s?|enc(oder)?_((n|num)_)?layers?|n_enc",
    "decoder_layers": r"(n|num)_?dec(oder)?_?(layer|block)s?|dec(oder)?_((n|num)_)?layers?|n_dec",
    "layers": r"n|(n|num|number)(_of)?_?(hidden_)?(layers?|blocks?)|layers|depth|n_layer",
    "positions": (
        r"max_?(seq_?|sequence_?)?(len|length|size)|block_size|context(_(len|length|size|window))?|"
        r"((src|source|trg|tgt|target)_)?(seq|sequence)_?(len|length)|max_position\w*|n_positions?|n_ctx"
    ),
    "pad": r"((src|trg|tgt|source|target)_?)?pad(ding)?(_?(id|idx|index|token|token_id))?",
    "batch": r"(max_?)?(batch|bsz)(_?size)?|max_batches",
    "base": r"(rope_?|rotary_?)?(base|theta)(_?freq\w*)?",
    "rotary_width": r"rotary_?(emb(edding)?_?)?(dim|ndims|width|size)|(rot|rope)_?dim|n_rot",
    "word_width": r"d_?word(_?vec)?|word_?(dim|vec_dim|emb_dim)",
    "width": (
        rf"(d|n|num|dim|e|emb|embed|embedding|hidden|model)?_?{_WIDTH}s?|num_hiddens|n_embe?d|normalized_shape|d_?model"
    ),
}

#: Arguments of forward by role.
ARGUMENTS: Final[Mapping[str, str]] = {
    "mask": r".*mask.*|.*valid_?len.*|.*_lens|lengths|bias|attn_bias",
    "query": r"(x_?|input_?)?q(uery|ueries|s|_in|_input)?(_input)?",
    "key": r"(x_?|input_?)?k(eys?|s|_in|_input)?(_input)?",
    "value": r"(x_?|input_?)?v(al|alues?|s|_in|_input)?(_input)?",
    "memory": r"mem(ory)?|enc\w*|encoder\w*|context|source\w*|src\w*|cond|cross\w*|kv|x_?kv",
    "target": r"tgt\w*|trg\w*|target\w*|dec\w*|decoder\w*|y",
    "pad": SIZES["pad"],
    "cache": r"(\w+_)?(caches?|past)|past_\w+",
    "start": r"(start|cur|current)_?(pos(ition)?|index|idx)",
    "cosines": r"cos(ines?)?|freqs_cos|rope_cos|cos_\w+",
    "sines": r"sin(es?)?|freqs_sin|rope_sin|sin_\w+",
    "tables": (
        r"freqs?(_(cis|ci|complex))?|(rope|rotary)(_(cache|embs?|embeddings?|tables?|freqs?))?|cos_sin|"
        r"(pos|position)_(embs?|embeddings?)"
    ),
    "places": r"(position|pos)_?ids?|positions?|input_?pos|cache_position",
    "gamma": r"(norm_?)?(weight|gamma|g|gain|scale|alpha|a|a_?2|w)",
    "beta": r"(norm_?)?(bias|beta|b|shift|offset|b_?2|delta)",
}

#: The projections of attention by what is left of a name without words such as linear and proj.
PROJECTIONS: Final[Mapping[str, str]] = {
    # nanoGPT calls its projections c_q, c_attn and c_proj.
    "q": r"q|cq|qs|query|querys|queries",
    "k": r"k|ck|ks|key|keys",
    "v": r"v|cv|vs|val|value|values",
    "o": r"o|out|output|final|concat|combine|unify|unifyheads|attn|attention|cattn|c",
    "kv": r"kv|kvs",
    "qkv": r"qkv|qvk|kqv|kvq|vqk|vkq|in|cattn|toqkv|qkvs",
}
_FILLERS: Final = re.compile(
    r"weights?|linears?|projections?|projects?|proj|layers?|nets?|maps?|matrix|dense|heads?|(^|_)w(?=_|[qkvo])|(^|_)to_?|_|\d"
)

#: The gain and the shift of a norm.
GAIN: Final = ARGUMENTS["gamma"]
SHIFT: Final = ARGUMENTS["beta"]

#: The parts of a layer by the words of a path.
_CROSS: Final = r"cross|src|source|enc|encdec|encoder|memory|mem|context|inter|multihead|2"
_FEED: Final = r"ff|ffn|mlp|feed|forward|fc|pff|feedforward|positionwise|pos"
_SELF: Final = r"self|attn|attention|mha|sa|slf|masked|tgt|dec|msa|att"
PARTS: Final[Mapping[str, str]] = {"feed": _FEED, "cross": _CROSS, "self": _SELF}

#: The components that any class with an input and at most one matrix could be: what its name or its code says of them.
VAGUE: Final[Mapping[str, tuple[str, str]]] = {
    "token_embedding": ("emb|lookup|token|vocab", r"Embedding\("),
    "positional_encoding": ("pos|sinus|pe$|encod|timing", r"\bsin\("),
    "softmax": ("softmax", r"\b(exp|softmax)\("),
}


def says(name: str, pattern: str) -> bool:
    """Return True if a whole name says a role."""
    return re.fullmatch(pattern, name.lower()) is not None


def list_roles(name: str, roles: Mapping[str, str]) -> list[str]:
    """Return the roles that a name may say, the likeliest first."""
    return [role for role, pattern in roles.items() if says(name, pattern)]


def find_projection(name: str) -> str | None:
    """Return the projection that the last name of a path says, such as "q" for "w_qs"; None if it says nothing."""
    bare = _FILLERS.sub("", name.lower())
    return next((role for role in ("q", "k", "v", "kv", "qkv") if says(bare, PROJECTIONS[role])), None)


def split_words(path: str) -> list[str]:
    """Return the words and numbers of a path: "encLayers.0.norm_2" gives enc, layers, 0, norm, 2."""
    return re.findall(r"\d+|[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", path).lower())


def find_part(path: str) -> str | None:
    """Return the part of a layer that a path says: "cross", "feed" or "self"; None if it says nothing."""
    words = split_words(path)
    return next((part for part, pattern in PARTS.items() if any(says(word, pattern) for word in words)), None)
