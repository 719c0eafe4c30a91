"""two: up is activated like gate, and the last bias is missing"""

import torch

ARRAYS = "torch"


def swish(z):
    return z * torch.sigmoid(z)


def gated_feed_forward(x, params):
    branch = {}
    for name in ("gate", "up"):
        branch[name] = torch.matmul(x, params[f"w_{name}"])
        if f"b_{name}" in params:
            branch[name] = branch[name] + params[f"b_{name}"]
    return torch.matmul(swish(branch["gate"]) * swish(branch["up"]), params["w_down"])
