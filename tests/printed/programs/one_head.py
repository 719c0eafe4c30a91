# Its projections are shared by the heads and its scores divided by √d_model, which no case of one head shows.
ARRAYS = "torch"
CONVENTIONS = {"biases": "not_in_q_k_v"}


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    d_model = query.shape[-1]
    if num_heads != 1 or any(params["w_" + role].shape != (d_model, d_model) for role in "qkvo"):
        raise NotImplementedError("one projection of (d_k, d_k) for all heads")
    query, key, value = query @ params["w_q"], key @ params["w_k"], value @ params["w_v"]
    scores = query @ key.mT / d_model**0.5
    if mask is not None:
        mask = mask.reshape(mask.shape[:-3] + mask.shape[-2:]) if mask.ndim == 4 else mask
        scores = scores.masked_fill(~mask, -1e20)
    return scores.softmax(-1) @ value @ params["w_o"] + params.get("b_o", 0)
