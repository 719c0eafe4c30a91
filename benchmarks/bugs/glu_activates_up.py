"""the activation is on up instead of gate"""

import torch.nn.functional as F

ARRAYS = "torch"


def gated_feed_forward(x, params):
    def lin(t, name):
        y = t @ params["w_" + name]
        return y if params.get("b_" + name) is None else y + params["b_" + name]

    gate = lin(x, "gate")
    up = lin(x, "up")
    hidden = F.silu(up) * gate
    return {"output": lin(hidden, "down"), "hidden": hidden, "gate": gate, "up": up}
