"""The adapter of the two Triton kernels: it converts arguments and results, and computes nothing."""

import triton
from flash_attention import flash_attention
from layer_norm import layer_norm as normalise

from goldformer.adapters.layouts import four_axes, is_causal

NAME = "triton-examples"
VERSION = triton.__version__
ARRAYS = "torch"
INTERPRETED = triton.knobs.runtime.interpret
DEVICES = ("cpu",) if INTERPRETED else ("cuda",)
# The interpreter multiplies the bits of bfloat16 as whole numbers.
DTYPES = ("float32", "float16") if INTERPRETED else ("float32", "float16", "bfloat16")
CONVENTIONS = {"empty_row": "zeros"}


def scaled_dot_product_attention(query, key, value, mask=None):
    """Call the kernel, which knows a causal mask by itself, on four axes."""
    q, k, v, m, restore = four_axes(query, key, value, mask)
    if m is not None and is_causal(m, q_seq=q.shape[-2], kv_seq=k.shape[-2]):
        return restore(flash_attention(q, k, v, causal=True))
    return restore(flash_attention(q, k, v, m))


def layer_norm(x, *, params):
    """Call the kernel."""
    return normalise(x, params["gamma"], params["beta"])
