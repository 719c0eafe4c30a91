"""The adapter of ONNX Runtime: its CPU kernels of the operators of ONNX."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from goldformer.adapters.libraries._onnx_graphs import Array, OnnxGraphs, Params, Program


@dataclass(frozen=True)
class OnnxRuntime(OnnxGraphs):
    """The operators of ONNX, with masks as large as the scores, which ONNX Runtime needs."""

    def multi_head_attention(
        self, query: Array, key: Array, value: Array, mask: Array | None = None, *, num_heads: int, params: Params
    ) -> tuple[Array, Array]:
        """Call Attention with at least one head."""
        if num_heads < 1:
            # Do not run it: it divides by q_num_heads, and the process ends.
            raise NotImplementedError("no heads: ONNX Runtime ends the whole process, a division by zero")
        return super().multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)

    def _fit_mask(self, mask: Array | None, rows: tuple[int, ...], kv_seq: int) -> Array | None:
        """Return a mask as large as the scores: it does not broadcast along queries or keys."""
        return None if mask is None else np.broadcast_to(mask, (*rows, kv_seq))


def _load(model: onnx.ModelProto) -> Program:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # it raises and logs every error
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except NoKernel as error:
        raise NotImplementedError(str(error)) from error
    return lambda inputs: list(session.run(None, inputs))


onnx_runtime: Final = OnnxRuntime("onnxruntime", onnxruntime.__version__, _load, {"empty_row": "zeros"})
