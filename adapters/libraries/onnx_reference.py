"""The adapter of ONNX's reference evaluator: the operators of the standard, in NumPy."""

from typing import Final

import onnx
from onnx.reference import ReferenceEvaluator

from goldformer.adapters.libraries._onnx_graphs import OnnxGraphs, Program


def _load(model: onnx.ModelProto) -> Program:
    evaluator = ReferenceEvaluator(model)
    return lambda inputs: list(evaluator.run(None, inputs))


onnx_reference: Final = OnnxGraphs("onnx-reference", onnx.__version__, _load, {"empty_row": "zeros"})
