"""Classes of NumPy with a backward pass of their own, as people write them to learn."""

import numpy as np


class Layer:
    def __call__(self, *arguments, **keywords):
        return self.forward(*arguments, **keywords)

    def forward(self, *arguments, **keywords):
        raise NotImplementedError


class Dense(Layer):
    """Its weights stand next to what an optimiser keeps."""

    def __init__(self, inputs, units):
        self.w = np.random.normal(0, inputs**-0.5, (inputs, units)).astype(np.float32)
        self.b = np.zeros(units, np.float32)
        self.velocity, self.momentum = np.zeros_like(self.w), np.zeros_like(self.w)

    def forward(self, x):
        self.x = x
        return x @ self.w + self.b


class Normalised(Layer):
    def __init__(self, hidden_dim, eps=1e-6):
        self.eps, self.gamma, self.beta = eps, np.ones(hidden_dim), np.zeros(hidden_dim)

    def forward(self, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        return self.gamma * centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.eps) + self.beta


class ManyHeads(Layer):
    def __init__(self, d_model, num_heads):
        self.heads, self.width = num_heads, d_model // num_heads
        self.query, self.key = Dense(d_model, d_model), Dense(d_model, d_model)
        self.value, self.output = Dense(d_model, d_model), Dense(d_model, d_model)

    def split(self, x):
        return x.reshape(len(x), -1, self.heads, self.width).transpose(0, 2, 1, 3)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.split(self.query(query)), self.split(self.key(key)), self.split(self.value(value))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(self.width)
        scores = scores if mask is None else np.where(mask, scores, -1e9)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        self.weights = powers / powers.sum(axis=-1, keepdims=True)
        return self.output((self.weights @ v).transpose(0, 2, 1, 3).reshape(query.shape))


class HalfNormalised(Normalised):
    """The variance is divided by one less than there are channels."""

    def forward(self, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        return self.gamma * centred / np.sqrt(x.var(axis=-1, ddof=1, keepdims=True) + self.eps) + self.beta
