import numpy as np

ARRAYS = "numpy"
NAME = "mine"
VERSION = "7"


def softmax(scores):
    if 0 in scores.shape:
        raise ValueError("scores: empty")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
