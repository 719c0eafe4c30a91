"""The components as graphs of ONNX operators, in ONNX's text form.

A component is one operator if the standard has it; multi-head attention, feed-forward network and output layer are the
operators of an exported model. The losses start from logits. There is no positional encoding, and RotaryEmbedding takes
the cosines and sines of its angles.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from goldformer.adapters.layouts import four_axes, four_axes_mask

Array = NDArray[Any]
Params = Mapping[str, Array]

#: A graph that is ready to run: maps inputs by name to outputs in order.
Program = Callable[[dict[str, Array]], list[Array]]

# Attention came with opset 23.
_HEAD: Final = '<ir_version: 11, opset_import: ["": 23]>'

_ELEMENTS: Final = {"float64": "double", "float32": "float", "float16": "float16", "int64": "int64", "bool": "bool"}


@dataclass(frozen=True)
class OnnxGraphs:
    """The components as operators of ONNX; `load` makes a program of a graph."""

    NAME: str
    VERSION: str
    load: Callable[[onnx.ModelProto], Program]
    CONVENTIONS: Mapping[str, str]
    programs: dict[str, Program] = field(default_factory=dict)

    ARRAYS = "numpy"
    DTYPES = ("float64", "float32", "float16")

    def softmax(self, scores: Array) -> Array:
        """Call Softmax over the last axis."""
        return self._run("y = Softmax <axis = -1> (scores)", {"scores": scores})[0]

    def layer_norm(self, x: Array, *, params: Params) -> Array:
        """Call LayerNormalization over the last axis, with its own epsilon, 1e-5."""
        return self._run("y = LayerNormalization <axis = -1> (x, gamma, beta)", {"x": x, **params})[0]

    def rms_norm(self, x: Array, *, params: Params) -> Array:
        """Call RMSNormalization over the last axis, with the epsilon 1e-6 instead of its own, 1e-5."""
        return self._run("y = RMSNormalization <axis = -1, epsilon = 0.000001> (x, gamma)", {"x": x, **params})[0]

    def rotary_embedding(
        self, x: Array, positions: Array, *, base: float = 10000.0, rotary_width: int | None = None
    ) -> Array:
        """Call RotaryEmbedding on pairs of neighbours, with the cosines and sines of positions · base^(−2i/width)."""
        if x.dtype == np.float64:
            raise NotImplementedError("the standard has no RotaryEmbedding of float64")
        width = x.shape[-1] if rotary_width is None else rotary_width
        angles = positions[..., None] * base ** (-np.arange(0, width, 2) / width)
        # It takes one row of angles for all heads of a sample: here each head is a sample.
        rows = np.broadcast_to(angles, (*x.shape[:-1], width // 2)).reshape(-1, x.shape[-2], width // 2)
        inputs = {"x": x.reshape(-1, 1, *x.shape[-2:]), "cosine": np.cos(rows), "sine": np.sin(rows)}
        options = f"interleaved = 1, rotary_embedding_dim = {0 if width == x.shape[-1] else width}"
        body = f"y = RotaryEmbedding <{options}> (x, cosine, sine)"
        return self._run(body, {name: value.astype(x.dtype) for name, value in inputs.items()})[0].reshape(x.shape)

    def token_embedding(self, ids: Array, *, params: Params) -> Array:
        """Call Gather on the rows."""
        return self._run("y = Gather <axis = 0> (table, ids)", {"table": params["table"], "ids": ids})[0]

    def causal_mask(self, *, q_seq: int, kv_seq: int) -> Array:
        """Call Trilu on ones."""
        return self._run("y = Trilu <upper = 0> (x)", {"x": np.ones((q_seq, kv_seq), dtype=bool)}, y="bool")[0]

    def scaled_dot_product_attention(
        self, query: Array, key: Array, value: Array, mask: Array | None = None
    ) -> tuple[Array, Array]:
        """Call Attention over four axes; return output, and the weights as its fourth output."""
        q, k, v, m, restore = four_axes(query, key, value, self._fit_mask(mask, query.shape[:-1], key.shape[-2]))
        inputs = {"q": q, "k": k, "v": v} | ({} if m is None else {"m": m})
        body = f"y, pk, pv, w = Attention <qk_matmul_output_mode = 3> ({', '.join(inputs)})"
        output, weights = self._run(body, inputs, "w")
        return restore(output), restore(weights)

    def grouped_query_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        bias: Array | None = None,
        *,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> tuple[Array, Array]:
        """Call Attention with fewer heads of keys, and a bias as a float mask; return output and weights."""
        mask = self._fit_mask(mask, query.shape[:-1], key.shape[-2])
        masked = None if mask is None else four_axes_mask(mask)
        if bias is not None:
            masked = bias[None] if masked is None else np.where(masked, bias, bias.dtype.type(-np.inf))
        inputs = {"q": query, "k": key, "v": value} | ({} if masked is None else {"m": masked})
        settings = {"scale": scale, "softcap": softcap}
        options = "".join(f", {name} = {float(number)}" for name, number in settings.items() if number is not None)
        body = f"y, pk, pv, w = Attention <qk_matmul_output_mode = 3{options}> ({', '.join(inputs)})"
        output, weights = self._run(body, inputs, "w")
        return output, weights

    def cached_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        state: tuple[Array, Array] | None = None,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Call Attention with is_causal and the past keys and values; return output, and the present ones."""
        if state is None:
            state = (key[:, :, :0], value[:, :, :0])
        mask = self._fit_mask(mask, query.shape[:-1], state[0].shape[2] + key.shape[2])
        inputs = {"q": query, "k": key, "v": value, "past_k": state[0], "past_v": state[1]}
        inputs |= {} if mask is None else {"m": mask}
        body = f"y, pk, pv = Attention <is_causal = 1> (q, k, v, {'' if mask is None else 'm'}, past_k, past_v)"
        output, keys, values = self._run(body, inputs, "pk", "pv")
        return output, (keys, values)

    def multi_head_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        *,
        num_heads: int,
        params: Params,
    ) -> tuple[Array, Array]:
        """Call Attention over three axes, which splits and joins the heads; return output and weights."""
        mask = self._fit_mask(mask, (query.shape[0], num_heads, query.shape[1]), key.shape[1])
        inputs = {"query": query, "key": key, "value": value} | ({} if mask is None else {"mask": four_axes_mask(mask)})
        steps = [
            _linear(role, name, f"w_{role}", f"b_{role}", params)
            for role, name in (("q", "query"), ("k", "key"), ("v", "value"))
        ]
        heads = f"q_num_heads = {num_heads}, kv_num_heads = {num_heads}, qk_matmul_output_mode = 3"
        masked = "" if mask is None else ", mask"
        steps.append(f"joined, pk, pv, w = Attention <{heads}> (q, k, v{masked})")
        steps.append(_linear("y", "joined", "w_o", "b_o", params))
        output, weights = self._run("\n".join(steps), {**inputs, **params}, "w")
        return output, weights

    def feed_forward(self, x: Array, *, params: Params) -> tuple[Array, Array]:
        """Call MatMul, Add, Relu, MatMul and Add; return output and hidden."""
        steps = [_linear("before", "x", "w_1", "b_1", params), "hidden = Relu (before)"]
        steps.append(_linear("y", "hidden", "w_2", "b_2", params))
        output, hidden = self._run("\n".join(steps), {"x": x, **params}, "hidden")
        return output, hidden

    def output_probabilities(self, x: Array, *, params: Params) -> tuple[Array, Array]:
        """Call MatMul, Add and Softmax; return probabilities and logits."""
        steps = [_linear("logits", "x", "w_vocab", "b_vocab", params), "y = Softmax <axis = -1> (logits)"]
        probabilities, logits = self._run("\n".join(steps), {"x": x, **params}, "logits")
        return probabilities, logits

    def one_hot(self, ids: Array, *, vocab: int) -> Array:
        """Call OneHot with the values 0 and 1."""
        inputs = {"ids": ids, "depth": np.array(vocab), "values": np.array([0, 1])}
        return self._run("y = OneHot (ids, depth, values)", inputs, y="int64")[0]

    def pad_or_truncate(self, x: Array, *, length: int) -> Array:
        """Call Pad, which truncates for a negative number."""
        pads = np.array([0, 0, 0, 0, length - x.shape[1], 0])
        return self._run("y = Pad (x, pads)", {"x": x, "pads": pads})[0]

    def cross_entropy(self, logits: Array, targets: Array, *, pad_id: int) -> tuple[Array, Array]:
        """Call SoftmaxCrossEntropyLoss, whose ignore_index is the padding; return the mean, and each token."""
        inputs = {"logits": logits.swapaxes(1, 2), "targets": targets}  # it takes the words on axis 1
        ignored = f"ignore_index = {pad_id}"
        loss, each = (
            self._run(f"y = SoftmaxCrossEntropyLoss <{ignored}, reduction = {how}> (logits, targets)", inputs)[0]
            for how in ('"mean"', '"none"')
        )
        return loss, each

    def dropout(self, x: Array, *, rate: float, training: bool, seed: int) -> Array:
        """Call Dropout with its seed."""
        inputs = {"x": x, "rate": np.array(rate, dtype=x.dtype), "training": np.array(training)}
        # A program that ran before may continue its random numbers, as a session of ONNX Runtime does.
        self.programs.clear()
        return self._run(f"y = Dropout <seed = {seed}> (x, rate, training)", inputs)[0]

    def _fit_mask(self, mask: Array | None, rows: tuple[int, ...], kv_seq: int) -> Array | None:
        """Return a mask as the program takes it; `rows` are the axes of the scores but the last."""
        del rows, kv_seq
        return mask

    def _run(self, body: str, inputs: Params, *more: str, y: str = "") -> list[Array]:
        """Run a graph; return y, in the dtype of the floats unless another is named, and the outputs in `more`."""
        kinds = {name: _ELEMENTS[str(x.dtype)] for name, x in inputs.items()}
        own = y or next(kind for kind in kinds.values() if kind not in ("int64", "bool"))
        arguments = ", ".join(f"{kind}[] {name}" for name, kind in kinds.items())
        results = ", ".join(f"{own}[] {name}" for name in ("y", *more))
        text = f"{_HEAD} component ({arguments}) => ({results}) {{\n{body}\n}}"
        if text not in self.programs:
            self.programs[text] = self.load(onnx.parser.parse_model(text))
        return self.programs[text](dict(inputs))


def _linear(result: str, x: str, weight: str, bias: str, params: Params) -> str:
    """Return the text of a multiplication by a weight and, if there is a bias, its addition."""
    if params.get(bias) is None:
        return f"{result} = MatMul ({x}, {weight})"
    return f"{result}_product = MatMul ({x}, {weight})\n{result} = Add ({result}_product, {bias})"
