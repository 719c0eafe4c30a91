"""ReLU is after the second map instead of the first"""

import torch.nn.functional as F

ARRAYS = "torch"


def feed_forward(x, params):
    h = F.linear(x, params["w_1"].T, params.get("b_1"))
    return F.relu(F.linear(h, params["w_2"].T, params.get("b_2")))
