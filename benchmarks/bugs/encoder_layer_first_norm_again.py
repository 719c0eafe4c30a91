"""the second norm has the parameters of the first"""

import torch
import torch.nn.functional as F

ARRAYS = "torch"


def _attend(x, mask, heads, p):
    def cut(name):
        y = F.linear(x, p[f"self_attention.w_{name}"].T, p.get(f"self_attention.b_{name}"))
        return y.view(*x.shape[:2], heads, -1).permute(0, 2, 1, 3)

    q, k, v = map(cut, "qkv")
    s = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    if mask is not None:
        s = s.masked_fill(mask.logical_not(), torch.finfo(s.dtype).min)
    o = (s.softmax(3) @ v).permute(0, 2, 1, 3).flatten(2)
    return F.linear(o, p["self_attention.w_o"].T, p.get("self_attention.b_o"))


def encoder_layer(x, mask=None, *, num_heads, params):
    p, d = params, x.shape[-1:]
    a = F.layer_norm(x + _attend(x, mask, num_heads, p), d, p["norm_1.gamma"], p["norm_1.beta"])
    h = F.linear(a, p["feed_forward.w_1"].T, p.get("feed_forward.b_1")).relu()
    f = F.linear(h, p["feed_forward.w_2"].T, p.get("feed_forward.b_2"))
    return F.layer_norm(a + f, d, p["norm_1.gamma"], p["norm_1.beta"])
