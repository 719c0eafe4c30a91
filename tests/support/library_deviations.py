"""The known deviations of each library: the golden cases that it fails. docs/findings.md explains them."""

#: By adapter, the cases that fail in float32 and in float64.
DEVIATIONS = {
    "jax": {"hot-id-too-large", "hot-id-negative", "hot-vocabulary-too-small"},
    "flax": {
        "do-negative-rate",
        "do-rate-above-one",
        "emb-id-one-too-large",
        "emb-id-far-too-large",
        "emb-id-negative",
        "sdpa-dropout-everything",
        "sdpa-dropout-negative",
        "sdpa-dropout-above-one",
    },
    "equinox": {
        "do-negative-rate",
        "do-rate-above-one",
        "emb-id-one-too-large",
        "emb-id-far-too-large",
        "emb-id-negative",
    },
    "keras": {
        "ce-vocabulary-of-one",
        "emb-id-negative",
        "hot-id-negative",
        "kl-extreme-logits",
        "sdpa-gradient-empty-row",
    },
    "hugging-face": {
        "beam-eos-id-negative",
        "beam-eos-id-too-large",
        "beam-finish",
        "beam-finish-three-beams",
        "beam-set-aside-penalised",
        "dec-one-memory-for-all",
        "greedy-eos-id-negative",
        "greedy-eos-id-too-large",
        "greedy-padding-beyond-the-table",
        "greedy-padding-chosen",
        "mha-gradient-empty-row",
        "sdpa-gradient-empty-row",
    },
    "x-transformers": {
        "mha-empty-row",
        "mha-empty-row-of-one-head",
        "sdpa-empty-row",
        "sdpa-empty-row-by-query",
        "sdpa-empty-row-one-sample",
    },
    "onnxruntime": {
        "ce-fewer-targets-than-logits",
        "ce-target-negative",
        "do-evaluation-everything",
        "do-everything-dropped",
        "emb-id-negative",
        "hot-id-negative",
        "hot-id-too-large",
        "hot-vocabulary-too-small",
    },
    "onnx-reference": {
        "ce-huge-logits",
        "ce-target-negative",
        "do-everything-dropped",
        "do-negative-rate",
        "do-rate-above-one",
        "emb-id-negative",
        "hot-id-negative",
        "hot-id-too-large",
        "hot-vocabulary-too-small",
        "pad-cut-to-one-word",
        "pad-length-below-the-width",
        "pad-length-negative",
        "pad-length-zero",
        "pad-one-word-long",
        "pad-seven-words-cut-to-four",
        "sdpa-empty-row-by-query",
    },
    "tinygrad": {
        "ce-logits-of-one-sample",
        "ce-target-negative",
        "ce-target-too-large",
        "emb-id-far-too-large",
        "emb-id-negative",
        "emb-id-one-too-large",
        "hot-id-negative",
        "hot-id-too-large",
        "hot-vocabulary-too-small",
        "mask-causal-negative-queries",
    },
}

#: By adapter and dtype, the cases that fail in that dtype besides.
IN_DTYPE = {
    ("jax", "float32"): {"ln-gradient-far-from-zero"},
    ("keras", "float32"): {"kl-i-am-a-student", "kl-target-with-zeros", "kl-uniform-logits"},
    ("onnxruntime", "float64"): {"do-tenth"},
}

#: By adapter, the components that compute in float32, or with a constant in it, whatever the dtype: float64 shows it.
FLOAT32_INSIDE = {
    "jax": {"scaled_dot_product_attention"},
    "flax": {"scaled_dot_product_attention", "multi_head_attention"},
    "hugging-face": {"positional_encoding", "transformer", "greedy_decode", "beam_search"},
    "x-transformers": {"positional_encoding", "scaled_dot_product_attention", "multi_head_attention"},
    "onnxruntime": {"layer_norm", "scaled_dot_product_attention", "multi_head_attention"},
    "onnx-reference": {"layer_norm"},
}
