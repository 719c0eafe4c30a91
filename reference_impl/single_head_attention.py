"""Self-attention with one head over one sequence, its backward pass and its steps: the class of the java document."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._building import build
from goldformer.reference_impl._checks import check_bool, check_not_negative, check_positive_int, check_tensors
from goldformer.reference_impl._random import xavier_weight


class SingleHeadResult(NamedTuple):
    """Every matrix of the worked example, the result first.

    ``scores`` are QKᵀ as the document prints them, before the division by √d_model and before the mask.
    """

    output: Tensor  # (seq, d_model)
    weights: Tensor  # (seq, seq)
    query: Tensor  # (seq, d_model)
    key: Tensor  # (seq, d_model)
    value: Tensor  # (seq, d_model)
    scores: Tensor  # (seq, seq)


def single_head_attention(x: Tensor, *, w_q: Tensor, w_k: Tensor, w_v: Tensor, causal: bool) -> SingleHeadResult:
    """Attend from x to x with one head, causally (java's code) or not (its worked example).

    Formula:  Q = X W_Q,  K = X W_K,  V = X W_V,  output = softmax(QKᵀ / √d_model) V
    Shapes:   x (seq, d_model), w_q, w_k and w_v (d_model, d_model)
              → output, query, key, value (seq, d_model), weights, scores (seq, seq)
    Errors:   TypeError unless all are floating-point tensors of one dtype and causal is a bool;
              ValueError for shapes that do not fit
    Source:   java "公式解析部分" and "代码实现"; paper, section 3.2.1
    """
    check_bool("causal", causal)
    return build(SingleHeadAttention, w_q=w_q, w_k=w_k, w_v=w_v, causal=causal).forward(x)


class SingleHeadGradientResult(NamedTuple):
    """The gradients of the input and of the three weights."""

    x: Tensor  # (seq, d_model)
    w_q: Tensor  # (d_model, d_model)
    w_k: Tensor  # (d_model, d_model)
    w_v: Tensor  # (d_model, d_model)


class SingleHeadStepResult(NamedTuple):
    """The gradient of the input at the last training step, and the weights after it."""

    x_gradient: Tensor  # (seq, d_model)
    w_q: Tensor  # (d_model, d_model)
    w_k: Tensor  # (d_model, d_model)
    w_v: Tensor  # (d_model, d_model)


def single_head_attention_gradient(
    x: Tensor, output_gradient: Tensor, *, w_q: Tensor, w_k: Tensor, w_v: Tensor, causal: bool
) -> SingleHeadGradientResult:
    """Carry the gradient of the output back to x and to the weights, by hand as java does and without autograd.

    Formula:  ∂V = Pᵀ ∂O,  ∂P = ∂O Vᵀ,  ∂S_ij = P_ij (∂P_ij − Σ_k ∂P_ik P_ik),  ∂Q = ∂S K / √d_model,
              ∂K = ∂Sᵀ Q / √d_model;  ∂W_Q = Xᵀ ∂Q and so on,  ∂X = ∂Q W_Qᵀ + ∂K W_Kᵀ + ∂V W_Vᵀ;  P are the weights
    Shapes:   x, output_gradient (seq, d_model), w_q, w_k and w_v (d_model, d_model)
              → x (seq, d_model), w_q, w_k, w_v (d_model, d_model), the gradients of these
    Errors:   as single_head_attention
    Source:   java "代码实现", its backward
    """
    check_bool("causal", causal)
    return build(SingleHeadAttention, w_q=w_q, w_k=w_k, w_v=w_v, causal=causal).gradient(x, output_gradient)


def single_head_attention_step(
    x: Tensor,
    output_gradient: Tensor,
    *,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    causal: bool,
    learning_rate: float,
    steps: int = 1,
) -> SingleHeadStepResult:
    """Move the weights against their gradients, once or several times, with the same x and the same output_gradient.

    Formula:  W ← W − lr ∂W for each of the three, all gradients at the weights before the step
    Shapes:   x, output_gradient (seq, d_model), w_q, w_k and w_v (d_model, d_model)
              → x_gradient (seq, d_model), w_q, w_k, w_v (d_model, d_model), new tensors
    Errors:   as single_head_attention; ValueError for a learning_rate below 0 or steps below 1
    Source:   java "代码实现", the end of its backward
    """
    check_not_negative("learning_rate", learning_rate)
    check_positive_int("steps", steps)
    check_bool("causal", causal)

    module = build(SingleHeadAttention, w_q=w_q, w_k=w_k, w_v=w_v, causal=causal)
    for _ in range(steps):
        gradient = module.gradient(x, output_gradient)
        # All gradients are computed before a weight changes, also that of x: each depends on all weights.
        module.w_q = module.w_q - learning_rate * gradient.w_q  # (d_model, d_model)
        module.w_k = module.w_k - learning_rate * gradient.w_k  # (d_model, d_model)
        module.w_v = module.w_v - learning_rate * gradient.w_v  # (d_model, d_model)
    return SingleHeadStepResult(gradient.x, module.w_q, module.w_k, module.w_v)


class SingleHeadAttention(nn.Module):
    """The java class: one causal head whose width is that of the model.

    Parameters: w_q, w_k, w_v, each (d_model, d_model). It trains by autograd and torch.optim.SGD like any module,
    or by its own step, which is java's and does the same.
    """

    def __init__(
        self,
        d_model: int,
        *,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("d_model", d_model)
        check_bool("causal", causal)
        self.causal = causal
        self.w_q: Tensor = xavier_weight(d_model, d_model, device, dtype)
        self.w_k: Tensor = xavier_weight(d_model, d_model, device, dtype)
        self.w_v: Tensor = xavier_weight(d_model, d_model, device, dtype)

    def forward(self, x: Tensor) -> SingleHeadResult:
        """Attend as single_head_attention does to x (seq, d_model)."""
        self._check_input(x)

        query, key, value = x @ self.w_q, x @ self.w_k, x @ self.w_v  # 3 × (seq, d_model)
        scores = functional.attention_scores(query, key)  # (seq, seq)
        seq = x.shape[0]
        mask = functional.causal_mask(seq, seq, device=x.device) if self.causal else None  # (seq, seq)
        # The weights are square, so the √d_k of attention is java's √d_model.
        output, weights = functional.scaled_dot_product_attention(query, key, value, mask)  # (seq, d_model)
        return SingleHeadResult(output, weights, query, key, value, scores)

    def _check_input(self, x: Tensor) -> None:
        """Refuse arguments that do not fit the parameters."""
        check_tensors(
            {
                "x": (x, "seq d_model"),
                "w_q": (self.w_q, "d_model d_model"),
                "w_k": (self.w_k, "d_model d_model"),
                "w_v": (self.w_v, "d_model d_model"),
            }
        )

    def gradient(self, x: Tensor, output_gradient: Tensor) -> SingleHeadGradientResult:
        """Carry the gradient of the output back as single_head_attention_gradient does; x (seq, d_model)."""
        check_tensors({"x": (x, "seq d_model"), "output_gradient": (output_gradient, "seq d_model")})
        forward = self(x)
        weights = forward.weights  # (seq, seq)

        # output = weights · value
        value = weights.T @ output_gradient  # (seq, d_model)
        for_weights = output_gradient @ forward.value.T  # (seq, seq)
        # A score moves its own weight, and through the sum of the softmax every weight of its row: hence the row's
        # term. Above the diagonal the weights are 0, and so is all of this; java writes the 0 there once more.
        row = (for_weights * weights).sum(dim=-1, keepdim=True)  # (seq, 1)
        scaled = weights * (for_weights - row)  # (seq, seq)
        scores = scaled / math.sqrt(x.shape[-1])  # (seq, seq)
        # scores = query · keyᵀ
        query, key = scores @ forward.key, scores.T @ forward.query  # 2 × (seq, d_model)
        # query = x · w_q, and so on for key and value: x is used three times, so three gradients add up.
        for_x = query @ self.w_q.T + key @ self.w_k.T + value @ self.w_v.T  # (seq, d_model)
        return SingleHeadGradientResult(for_x, x.T @ query, x.T @ key, x.T @ value)

    @torch.no_grad()
    def step(self, x: Tensor, output_gradient: Tensor, learning_rate: float) -> Tensor:
        """Train as single_head_attention_step does, once and in place, and return the gradient of x (seq, d_model)."""
        trained = single_head_attention_step(
            x,
            output_gradient,
            w_q=self.w_q,
            w_k=self.w_k,
            w_v=self.w_v,
            causal=self.causal,
            learning_rate=learning_rate,
        )
        self.w_q.copy_(trained.w_q)
        self.w_k.copy_(trained.w_k)
        self.w_v.copy_(trained.w_v)
        return trained.x_gradient
