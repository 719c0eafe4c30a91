# Correct, but for its declaration: it has no biases.
ARRAYS = "torch"
CONVENTIONS = {"empty_row": "nan"}


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    if any(name.startswith("b_") for name, value in params.items() if value is not None):
        raise NotImplementedError("no biases")

    def split(x, role):
        return (x @ params[f"w_{role}"]).unflatten(-1, (num_heads, -1)).transpose(-3, -2)

    query, key, value = split(query, "q"), split(key, "k"), split(value, "v")
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -float("inf"))
    weights = scores.softmax(-1)
    return (weights @ value).transpose(-3, -2).flatten(-2) @ params["w_o"], weights
