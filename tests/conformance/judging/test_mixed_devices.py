"""Messages about tensors on two devices are read: which operand is on the CPU, and what it is."""

import pytest
import torch
import torch.nn.functional as F

from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.judging.mixed_devices import find_mixed_devices

here = pytest.mark.skipif(LIBRARIES["torch"].unavailable("pretend") is not None, reason="no pretend device here")

X = torch.linspace(-1, 1, 25).reshape(5, 5)
IDS = torch.tensor([1, 0, 4])
ROW = torch.zeros(1, 5, dtype=torch.int64)

#: By kind: the operation on a tensor of the device and one of the CPU, both in this order, and what the latter is.
KINDS = {
    "add": (lambda x, y: x + y, X, X, "constant"),
    "where": (lambda x, y: torch.where(y, x, x), X, X > 0, "mask"),
    "masked_fill": (lambda x, y: x.masked_fill(y, -1e9), X, X > 0, "mask"),
    "cat": (lambda x, y: torch.cat([x, y]), X, X, "part"),
    "linear with bias": (lambda x, y: F.linear(x, x, y), X, torch.ones(5), "weight"),
    "layer_norm": (lambda x, y: F.layer_norm(x, (5,), y), X, torch.ones(5), "weight"),
    "gather": (lambda x, y: x.gather(0, y), X, ROW, "ids"),
    "matmul": (lambda x, y: x @ y, X, X, "weight"),
    "linear without bias": (F.linear, X, X, "weight"),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), X, X, "weight"),
    "embedding": (lambda x, y: F.embedding(y, x), X, IDS, "ids"),
    "add_": (lambda x, y: x.clone().add_(y), X, X, "constant"),
    "scatter": (lambda x, y: x.scatter(0, y, 1.0), X, ROW, "ids"),
    "into add_": (lambda x, y: y.add_(x), X, X.clone(), "target"),
    "into scatter": (lambda x, y: y.scatter(0, x, 1.0), ROW, X, "target"),
    "an additive mask": (lambda x, y: x & y, X > 0, X > 0, "mask"),
    "the input of layer_norm": (lambda x, y: F.layer_norm(y, (5,), x), torch.ones(5), X, "other"),
}


@here
@pytest.mark.parametrize("kind", KINDS)
def test_the_message_of_each_kind_of_mixture_says_what_is_on_the_cpu(kind):
    run, one, other, role = KINDS[kind]
    with pytest.raises(RuntimeError) as caught:
        run(one.to("pretend"), other)
    found = find_mixed_devices(str(caught.value))
    assert found is not None
    assert (found.role, found.by_torch) == (role, True)


SAME = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


@pytest.mark.parametrize(
    ("argument", "method", "role"),
    [
        ("mat2", "wrapper_CUDA_mm", "weight"),
        ("mat2", "wrapper_CUDA_bmm", "weight"),
        ("mat1", "wrapper_CUDA_addmm", "other"),
        ("index", "wrapper_CUDA__index_select", "ids"),
        ("index", "wrapper_CUDA_gather", "ids"),
        ("weight", "wrapper_CUDA__native_layer_norm", "weight"),
        ("tensors", "wrapper_CUDA_cat", "part"),
    ],
)
def test_the_words_of_cuda_are_read_too(argument, method, role):
    found = find_mixed_devices(f"{SAME} (when checking argument for argument {argument} in method {method})")
    assert found is not None
    assert (found.role, found.operand, found.by_torch) == (role, argument, True)


def test_the_words_of_newer_versions_are_read():
    """Messages of torch 2.11 on a GPU."""
    norm = find_mixed_devices(
        "Expected all tensors to be on the same device, but got weight is on cpu, different from other tensors on "
        "cuda:0 (when checking argument in method wrapper_CUDA__native_layer_norm)"
    )
    assert norm is not None
    assert (norm.role, norm.operand, norm.operation) == ("weight", "weight", "native_layer_norm")
    fill = find_mixed_devices("expected self and mask to be on the same device, but got mask on cpu and self on cuda:0")
    assert fill is not None
    assert (fill.role, fill.operand, fill.operation, fill.by_torch) == ("mask", "mask", "masked_fill", True)


def test_where_cuda_names_no_operand_the_words_are_general():
    found = find_mixed_devices(SAME)
    assert found is not None
    assert (found.role, found.words, found.by_torch) == ("other", "a tensor", True)


def test_a_refusal_in_the_implementations_own_words_is_no_message_of_torch():
    found = find_mixed_devices("mask is on cpu and must be on the device of query, pretend:0")
    assert found is not None
    assert (found.role, found.by_torch) == ("other", False)


@pytest.mark.parametrize(
    "output", ["output is on cpu though the inputs are on pretend", "weights is on cpu, the inputs are on cuda:1"]
)
def test_a_result_on_the_cpu_is_a_mixture_to_come(output):
    found = find_mixed_devices(output)
    assert found is not None
    assert (found.role, found.operand) == ("result", output.partition(" ")[0])


@pytest.mark.parametrize(
    "message", ["no values", "shapes (2, 3) and (4, 5) do not fit", "a/cpu/pretending.py: no such file"]
)
def test_another_error_is_none(message):
    assert find_mixed_devices(message) is None
