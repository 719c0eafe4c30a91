"""A mixture of experts: which experts a token goes to, what each of them weighs, and the sum of their outputs."""

import numpy as np

from goldformer.spec.formulas.arrays import Array, multiply
from goldformer.spec.formulas.gated import gated_feed_forward
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.sampling import note_gaps, rank_largest, take_place, weigh_only
from goldformer.spec.formulas.steps import step


@step
def expert_router(x: Array, *, top_k: int, params: Params) -> dict[str, Array]:
    """Return the weight of every expert, 0 for those that a token does not go to, and the logits, (tokens, experts)."""
    logits = multiply(x, params["w_router"])
    return {"weights": weigh_experts(logits, choose_experts(logits, top_k)), "logits": logits}


@step
def choose_experts(logits: Array, top_k: int) -> Array:
    """Return True for the experts of the k largest logits of each token (MOE-2)."""
    order = rank_largest(logits)
    if top_k < logits.shape[-1]:
        ranked, place = np.take_along_axis(logits, order, -1), np.full((len(logits), 1), top_k)
        note_gaps(take_place(ranked, place - 1) - take_place(ranked, place))
    is_chosen = np.zeros(logits.shape, dtype=bool)
    np.put_along_axis(is_chosen, order[:, :top_k], values=True, axis=-1)
    return is_chosen


@step
def weigh_experts(logits: Array, is_chosen: Array) -> Array:
    """Return the softmax of the logits of the chosen experts, 0 for the others (MOE-3)."""
    return weigh_only(logits, is_chosen)


@step
def expert_feed_forward(x: Array, *, num_experts: int, top_k: int, params: Params) -> dict[str, Array]:
    """Return output (batch, seq, d_model), and weights and logits, (batch, seq, experts)."""
    tokens = x.reshape(-1, x.shape[-1])
    routed = expert_router(tokens, top_k=top_k, params={"w_router": params["w_router"]})
    weights, logits = (routed[name].reshape(*x.shape[:-1], num_experts) for name in ("weights", "logits"))
    return {"output": add_experts(x, weights, params), "weights": weights, "logits": logits}


@step
def add_experts(x: Array, weights: Array, params: Params) -> Array:
    """Return the sum of the outputs of all experts, each times its weight, (batch, seq, d_model) (MOE-6)."""
    first, *others = (
        run_expert(x, weights[..., index : index + 1], params=expert_params(params, index, weights.shape[-1]))
        for index in range(weights.shape[-1])
    )
    return sum(others, start=first)


@step
def run_expert(x: Array, weight: Array, *, params: Params) -> Array:
    """Return the output of one expert times its weight for each token, (batch, seq, d_model)."""
    return gated_feed_forward(x, params=params)["output"] * weight


@step
def expert_params(params: Params, index: int, num_experts: int) -> Params:
    """Return the parameters of the expert whose logits are a column of w_router (MOE-7)."""
    del num_experts
    return part(params, f"experts.{index}")
