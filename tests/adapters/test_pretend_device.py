"""The pretend device computes what the CPU computes, and refuses tensors of the CPU as CUDA does."""

import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import backend_registration

import goldformer
from goldformer.adapters import find_adapter, pretend_device
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.pretend_device import DirectDispatch
from goldformer.conformance.judging.cases import Bench, check_case, judge_case
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.verdict import Status
from goldformer.spec import load_spec

WHY_NOT = LIBRARIES["torch"].unavailable("pretend")
here = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

X = torch.linspace(-1, 1, 15).reshape(3, 5)
SQUARE = torch.linspace(1, 2, 25).reshape(5, 5)
IDS = torch.tensor([1, 0, 4])

#: By kind: the operation on a tensor of the device and one of the CPU, both in this order, and whether meta misses it.
MIXTURES = {
    "add": (lambda x, y: x + y, X, X, False),
    "where": (lambda x, y: torch.where(y, x, x), X, X > 0, False),
    "masked_fill": (lambda x, y: x.masked_fill(y, -1e9), X, X > 0, False),
    "cat": (lambda x, y: torch.cat([x, y]), X, X, False),
    "linear with bias": (lambda x, y: F.linear(x, x[:, :5], y), X, torch.ones(3), False),
    "layer_norm": (lambda x, y: F.layer_norm(x, (5,), y), X, torch.ones(5), False),
    "gather": (lambda x, y: x.gather(0, y), X, torch.zeros(1, 5, dtype=torch.int64), True),
    "matmul": (lambda x, y: x @ y, X, SQUARE, True),
    "linear without bias": (F.linear, X, SQUARE, True),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), X, SQUARE, True),
    "embedding": (lambda x, y: F.embedding(y, x), SQUARE, IDS, True),
    "add_": (lambda x, y: x.clone().add_(y), X, X, True),
    "scatter": (lambda x, y: x.scatter(0, y, 1.0), X, torch.zeros(1, 5, dtype=torch.int64), True),
}


@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("device", ["meta", pytest.param("pretend", marks=here)])
def test_a_tensor_of_the_cpu_is_refused(kind, device):
    run, one, other, meta_misses = MIXTURES[kind]
    run(one, other)
    run(one.to(device), other.to(device))
    if device == "meta" and meta_misses:
        run(one.to(device), other)
    else:
        with pytest.raises((RuntimeError, ValueError), match=r"(same|expected) device"):
            run(one.to(device), other)


@here
@pytest.mark.parametrize("kind", MIXTURES)
def test_direct_dispatch_refuses_the_same(kind):
    run, one, other, _ = MIXTURES[kind]
    with DirectDispatch():
        assert run(one.to("pretend"), other.to("pretend")).device.type == "pretend"
        assert torch.equal(run(one, other), run(one.to("pretend"), other.to("pretend")).cpu())
        with pytest.raises((RuntimeError, ValueError), match=r"(same|expected) device"):
            run(one.to("pretend"), other)


@here
def test_the_refusal_names_the_argument_and_the_operation():
    says = (
        r"^Expected all tensors to be on the same device, but found at least two devices, pretend:0 and cpu! "
        r"\(mat2 of aten\.mm\.default is on cpu\)$"
    )
    with pytest.raises(RuntimeError, match=says):
        X.to("pretend") @ SQUARE


@here
@pytest.mark.parametrize(
    "run",
    [
        lambda x: x * torch.tensor(2.0),
        lambda x: torch.tensor(2.0) - x,
        lambda x: torch.rsub(x, torch.tensor(2.0)),
        lambda x: x.masked_fill(x > 0, torch.tensor(-1.0)),
        lambda x: torch.where(x > 0, x, torch.tensor(-torch.inf)),
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[:, torch.tensor([True, False, True, True, False])],
        lambda x: x.clone().index_put_((torch.tensor([0]),), x[0]),
    ],
)
def test_scalars_and_indices_of_the_cpu_are_allowed(run):
    result = run(X.to("pretend"))
    assert result.device == torch.device("pretend", 0)
    assert torch.equal(result.cpu(), run(X))


@here
def test_a_scalar_of_the_cpu_does_not_take_a_result_and_a_tensor_of_the_cpu_no_indices_of_the_device():
    with pytest.raises(RuntimeError, match=r"self of aten\.add_\.Tensor is on cpu\)$"):
        torch.tensor(1.0).add_(X.to("pretend")[0, 0])
    with pytest.raises(RuntimeError, match=r"self of aten\.index\.Tensor is on cpu"):
        X[IDS[:2].to("pretend")]


def in_place(x):
    y = x.clone()
    y[0] = 7.0
    y.mT[1].mul_(3.0)
    y.unsqueeze_(0).transpose_(1, 2)
    assert y.shape == (1, 5, 3)
    y.data = y.data * 2
    return y


def parameters_replaced(x):
    layer = nn.Linear(5, 3, bias=False).to(x.device)
    layer.weight.data.fill_(2.0)
    layer.weight.data = layer.weight.data * x[:, :5]
    return layer(x)


@here
@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=x.device),
        lambda x: torch.tensor([x[0, 0], 2.0], device=x.device),
        lambda x: torch.as_tensor(np.eye(2), device=x.device),
        lambda x: x.new_tensor([1.0]),
        lambda x: torch.full_like(x, 3.0).triu(1),
        lambda x: torch.topk(x, 2).values,
        lambda x: x[x > 0],
        lambda x: x / x.max().item() if (x > 0).any() else x,
        lambda x: torch.manual_seed(5) and F.dropout(x, 0.5),
        lambda x: torch.manual_seed(5) and torch.multinomial(x.exp(), 2),
        torch.func.vmap(lambda row: row @ row),
        lambda x: torch.inference_mode()(nn.LayerNorm(5).to(x.device))(x),
        in_place,
        parameters_replaced,
    ],
)
def test_the_values_are_those_of_the_cpu(run):
    result = run(X.to("pretend"))
    assert result.device == torch.device("pretend", 0)
    assert torch.equal(result.cpu(), run(X))


@here
def test_direct_dispatch_gives_the_same_values():
    for made in (lambda x: torch.tensor([x[0, 0], 2.0], device=x.device), in_place, parameters_replaced):
        with DirectDispatch():
            result = made(X.to("pretend"))
            read = (result.tolist(), result.numpy(force=True).tolist(), result[0].sum().item())
        assert result.device == torch.device("pretend", 0)
        expected = made(X)
        assert read == (expected.tolist(), expected.tolist(), expected[0].sum().item())


CHECKS_DEVICES = """
import sys
import torch
from goldformer.adapters import find_adapter
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.properties.judge import check_property
from goldformer.spec import load_spec
spec = load_spec()
before = set(sys.modules)
bench = Bench(spec, find_adapter("reference", spec), "float32", "cpu")
print(check_property(spec.properties["device-hygiene"], "softmax", bench).status.value)
print(sorted({"sympy", "torch.distributed.tensor", "torch._dynamo"} & (set(sys.modules) - before)))
"""


@here
def test_a_check_of_devices_imports_neither_distributed_tensors_nor_the_compiler():
    ran = subprocess.run([sys.executable, "-c", CHECKS_DEVICES], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["passed", "[]"]


@here
def test_what_leaves_the_device_is_an_ordinary_tensor():
    x = X.to("pretend")
    for left in (x.cpu(), x.to("cpu"), torch.zeros_like(x, device="cpu"), x.new_ones(2, device="cpu")):
        assert (type(left), left.device.type) == (torch.Tensor, "cpu")
    assert x.tolist() == X.tolist()
    assert f"{x[0, 0]:.2f}" == "-1.00"
    assert np.array_equal(x.numpy(force=True), X.numpy())
    for convert in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"^can't convert pretend:0 device type tensor to numpy\. Use Tensor\.cpu"):
            convert()


@here
def test_a_module_and_its_gradients_agree_with_the_cpu():
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, batch_first=True)
    moved = copy.deepcopy(plain).to("pretend")
    x = torch.randn(2, 3, 8)
    results = []
    for module, given in ((plain, x), (moved, x.to("pretend"))):
        output = module(given, given, given)[0]
        output.square().sum().backward()
        results.append([output.detach().cpu(), *(p.grad.cpu() for p in module.parameters())])
    assert all(p.grad.device.type == "pretend" for p in moved.parameters())
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


class Tied(nn.Module):
    """A table that is also the output layer, as in many language models."""

    def __init__(self):
        super().__init__()
        self.table, self.output = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.output.weight = self.table.weight


@here
def test_tied_weights_stay_tied_when_a_module_is_moved():
    module = Tied().to("pretend")
    assert module.output.weight is module.table.weight
    assert isinstance(module.table.weight, nn.Parameter)
    module.load_state_dict({"table.weight": torch.ones(5, 3, device="pretend")}, strict=False)
    module.output(module.table(IDS.to("pretend"))).sum().backward()
    assert module.output.weight.grad.tolist() == [[8.0] * 3, [8.0] * 3, [3.0] * 3, [3.0] * 3, [8.0] * 3]


AFTER_A_BACKWARD_PASS = """
import torch
from goldformer.adapters.arrays import LIBRARIES
torch.ones(1, requires_grad=True).sum().backward()
print(LIBRARIES["torch"].unavailable("pretend"))
print((torch.ones(2, device="pretend") * 3).tolist())
"""


@here
def test_after_a_backward_pass_it_computes_values_and_no_gradients():
    ran = subprocess.run([sys.executable, "-c", AFTER_A_BACKWARD_PASS], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "gradients were computed in this process before the device pretend was there: check in a new process, or "
        "before everything else",
        "[3.0, 3.0]",
    ]


@here
def test_code_that_asks_for_an_accelerator_still_finds_none():
    assert not torch.accelerator.is_available()
    assert not torch.cuda.is_available()


@here
def test_there_is_one_such_device():
    assert LIBRARIES["torch"].unavailable("pretend:0") is None
    assert LIBRARIES["torch"].unavailable("pretend:1") == "there is one device pretend here, no pretend:1"


def test_a_torch_that_cannot_register_it_says_so(monkeypatch):
    monkeypatch.delattr(backend_registration, "_setup_privateuseone_for_python_backend", raising=False)
    assert pretend_device.register.__wrapped__() == (
        f"this PyTorch ({torch.__version__}) cannot register a device that is written in Python"
    )


def test_a_real_device_stays_the_one_that_torch_finds(monkeypatch):
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this PyTorch has no such device")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert pretend_device.register.__wrapped__() == (
        "there is a real device here, cuda, which PyTorch would no longer find next to pretend"
    )


@pytest.mark.sample(3)
@here
@pytest.mark.parametrize("name", ["reference", "torch-nn"])
@pytest.mark.parametrize("component", ["multi_head_attention", "encoder_layer", "xavier_uniform"])
def test_an_adapter_gives_the_values_of_the_cpu(name, component, spec):
    adapter = find_adapter(name, spec)
    on = {device: Bench(spec, adapter, "float32", device) for device in ("cpu", "pretend")}
    cases = [case for case in spec.cases_of(component) if case.error is None and not case.full_size]
    verdicts = {device: [check_case(case, bench) for case in cases] for device, bench in on.items()}
    assert [(v.check, v.status) for v in verdicts["pretend"]] == [(v.check, v.status) for v in verdicts["cpu"]]
    assert any(v.status is Status.PASSED for v in verdicts["pretend"])
    if name == "reference":  # torch-nn takes another way through PyTorch's fused attention
        assert [v.ratio for v in verdicts["pretend"]] == [v.ratio for v in verdicts["cpu"]]
    assert not [v.message for v in verdicts["pretend"] if v.bad]


@here
@pytest.mark.parametrize(
    ("arrays", "devices", "says"),
    [
        ("torch", ("cpu",), "works on cpu, not on pretend"),
        ("numpy", ("cpu",), "works on cpu, not on pretend"),
        ("torch", ("cuda",), "works on cuda, not on pretend"),
        ("torch", ("cpu", "cuda"), None),
    ],
)
def test_whoever_declares_the_cpu_and_cuda_runs_on_it(arrays, devices, says, spec, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"ARRAYS = {arrays!r}\nDEVICES = {devices!r}\ndef softmax(scores): ...\n")
    unusable = Bench(spec, find_adapter(str(path), spec), "float32", "pretend").explain_unusable()
    assert unusable is None if says is None else unusable[1].endswith(says)


@here
def test_from_python_the_device_is_an_option(spec):
    def softmax(scores):
        return torch.softmax(scores + torch.zeros(scores.shape[-1]), -1)

    goldformer.check(find_adapter("reference", spec).functions["softmax"], device="pretend").raise_for_failures()
    with pytest.raises(AssertionError, match=r"pretend:0 and cpu! \(other of aten\.add\.Tensor is on cpu\)"):
        goldformer.check(softmax, device="pretend").raise_for_failures()


@here
def test_code_that_switches_autocast_off_runs(spec):
    def softmax(scores):
        with torch.autocast(scores.device.type, enabled=False):
            return torch.softmax(scores, -1)

    goldformer.check(softmax, device="pretend").raise_for_failures()


@here
def test_a_generator_which_the_device_does_not_have_is_no_mistake(spec, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        'import torch\nARRAYS = "torch"\ndef xavier_uniform(like, *, seed):\n'
        "    generator = torch.Generator(like.device).manual_seed(seed)\n"
        "    return torch.nn.init.xavier_uniform_(torch.empty_like(like), generator=generator)\n"
    )
    case = next(case for case in spec.cases_of("xavier_uniform") if case.error is None)
    verdict = check_case(case, Bench(spec, find_adapter(str(path), spec), "float32", "pretend"))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message.startswith(
        "cannot run on the pretend device, which has no random generators and no kernels of its own: "
    )


@here
def test_a_nested_tensor_which_the_device_does_not_have_is_no_mistake(spec):
    bench = Bench(spec, find_adapter("torch-nn-fast-path", spec), "float32", "pretend")
    verdict = check_case(spec.cases["encs-ordinary-seven-tokens"], bench)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message.endswith("the device pretend (PrivateUse1) has no nested tensors")


def judge_on_both(name, component, spec):
    """The judgements of an adapter on the CPU and on the device, of each case of a component that has a result."""
    benches = [Bench(spec, find_adapter(name, spec), "float32", device) for device in ("cpu", "pretend")]
    cases = [case for case in spec.cases_of(component) if case.error is None and not case.full_size]
    return [(judge_case(case, benches[0]), judge_case(case, benches[1])) for case in cases]


@here
@pytest.mark.sample(4)
@pytest.mark.parametrize("component", load_spec().components)
@pytest.mark.parametrize("name", ["reference", "torch-nn-math"])
def test_every_golden_case_and_gradient_has_the_values_of_the_cpu(name, component, spec):
    for plain, moved in judge_on_both(name, component, spec):
        one, other = (replace(judged.verdict, device="", reproduce="", seconds=0.0) for judged in (plain, moved))
        assert one == other
        if isinstance(plain.outcome, Result):
            assert plain.outcome.outputs.keys() == moved.outcome.outputs.keys()
            for output, values in plain.outcome.outputs.items():
                assert np.array_equal(values, moved.outcome.outputs[output], equal_nan=True)


@here
@pytest.mark.sample(2)
@pytest.mark.parametrize("component", ["scaled_dot_product_attention", "multi_head_attention", "encoder", "decoder"])
def test_kernels_that_pytorch_chooses_by_the_device_give_the_same_verdicts(component, spec):
    judged = judge_on_both("torch-nn", component, spec)
    assert [plain.verdict.status for plain, _ in judged] == [moved.verdict.status for _, moved in judged]
    assert any(moved.verdict.status is Status.PASSED for _, moved in judged)
