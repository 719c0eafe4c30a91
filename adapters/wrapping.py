"""An adapter whose functions pass through a transformation of PyTorch: compile, export, vmap or script.

The functions keep their names and parameters, so that the same calls judge them. If one cannot pass, it raises
an exception of PyTorch, or NotImplementedError if PyTorch is not asked.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from goldformer.adapters.protocol import Adapter, Loader
from goldformer.spec import Contract, Spec
from goldformer.spec.model import ArraySpec

Function = Callable[..., Any]

#: By the word of the command line: the transformation.
WRAPPERS: Final = {
    "compile": "torch.compile",
    "export": "torch.export",
    "vmap": "torch.vmap",
    "script": "torch.jit.script",
}

#: The number of versions of one function that are compiled. Each number of axes, each option and each set of parameters
#: needs its own, and PyTorch gives up after 8.
_VERSIONS: Final = 4096

#: The name of the axis that vmap removes.
_BATCH: Final = ("batch",)


def wrap_adapter(adapter: Adapter, wrapper: str, spec: Spec) -> Adapter:
    """Return the adapter with its functions wrapped; each is wrapped when it is first called."""
    load = adapter.loader.load and functools.partial(_load_wrapped, adapter.loader.load, wrapper)
    return replace(_wrap_functions(adapter, wrapper, spec), loader=Loader(load))


def _load_wrapped(load: Callable[[Spec], Adapter], wrapper: str, spec: Spec) -> Adapter:
    return _wrap_functions(load(spec), wrapper, spec)


def _wrap_functions(adapter: Adapter, wrapper: str, spec: Spec) -> Adapter:
    if adapter.arrays != "torch":
        why = f"{WRAPPERS[wrapper]} takes functions of PyTorch, and these work on {adapter.arrays} arrays"
        decline: Callable[[Function, Contract], Function] = functools.partial(_decline, why=why)
        return _replace_functions(adapter, decline, decline, spec)
    if wrapper == "vmap":
        of_gradients = functools.partial(
            _decline, why="the adapter's own backward function has no batch axis to map over"
        )
        return _replace_functions(adapter, _map_over_batch, of_gradients, spec)
    wrap = {"compile": _compile, "export": _export, "script": _script}[wrapper]
    return _replace_functions(adapter, wrap, wrap, spec)


def _replace_functions(
    adapter: Adapter,
    wrap: Callable[[Function, Contract], Function],
    wrap_gradient: Callable[[Function, Contract], Function],
    spec: Spec,
) -> Adapter:
    def each(functions: Mapping[str, Function], how: Callable[[Function, Contract], Function]) -> dict[str, Function]:
        # The wrapped function shows its parameters, which decide the arguments of a call.
        return {name: functools.wraps(f)(how(f, spec.contracts[name])) for name, f in functions.items()}

    return replace(adapter, functions=each(adapter.functions, wrap), gradients=each(adapter.gradients, wrap_gradient))


def _decline(_function: Function, _contract: Contract, *, why: str) -> Function:
    def decline(**_arguments: Any) -> Any:
        raise NotImplementedError(why)

    return decline


def _compile(function: Function, _contract: Contract) -> Function:
    """Compile the whole of a function, without a break, for arrays of any size; on the CPU Inductor writes C++."""
    import torch  # seconds, and an optional dependency

    program = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    compiled = torch.compile(function, fullgraph=True, dynamic=True)

    def run(**arguments: Any) -> Any:
        if shutil.which(program) is None:
            raise NotImplementedError(f"torch.compile needs a C++ compiler, and {program} is not installed")
        # The names of both limits are those of PyTorch 2.6 and later; the first one had another name before.
        config = torch._dynamo.config
        name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
        with config.patch({name: _VERSIONS, f"accumulated_{name}": _VERSIONS}):
            return compiled(**arguments)

    return run


def _export(function: Function, _contract: Contract) -> Function:
    """Export a program for each form of a call, and run the programs."""
    import torch  # seconds, and an optional dependency

    class Call(torch.nn.Module):
        """A module, because only modules can be exported."""

        def forward(self, **arguments: Any) -> Any:
            """Call the function."""
            return function(**arguments)

    programs: dict[object, Function] = {}

    def run(**arguments: Any) -> Any:
        form = _describe_form(arguments)
        if form not in programs:
            programs[form] = torch.export.export(Call(), (), arguments).module()
        return programs[form](**arguments)

    return run


def _describe_form(value: Any) -> object:
    """Return what a program is exported for: shapes, dtypes and devices of tensors, and all other values."""
    if isinstance(value, Mapping):
        return tuple((name, _describe_form(inner)) for name, inner in value.items())
    if hasattr(value, "shape"):
        return tuple(value.shape), value.dtype, value.device, value.requires_grad
    return type(value), value


def _script(function: Function, _contract: Contract) -> Function:
    """Compile the source of a function to TorchScript."""
    import torch  # seconds, and an optional dependency

    scripted: list[Function] = []

    def run(**arguments: Any) -> Any:
        if not scripted:
            scripted.append(torch.jit.script(function))
        return scripted[0](**arguments)

    return run


def _map_over_batch(function: Function, contract: Contract) -> Function:
    """Call a function with one sample at a time, a batch of 1, under torch.vmap; parameters serve all samples."""
    import torch  # seconds, and an optional dependency

    def run(**arguments: Any) -> Any:
        ranks = (arguments[n].ndim - len(s.shape.axes) for n, s in contract.inputs.items() if _leads(s, arguments, n))
        lead = next(ranks, 0)
        mapped = {
            name: arguments[name]
            for name, spec in contract.inputs.items()
            if arguments.get(name) is not None and _has_samples(spec, arguments[name].shape, lead)
        }
        if not mapped or not _has_batch(contract.outputs[contract.first_output], lead):
            what = f"{contract.component} returns no" if mapped else f"no argument of {contract.component} has an"
            raise NotImplementedError(f"{what} axis of samples, which torch.vmap maps over")
        whole = {name: value for name, value in arguments.items() if name not in mapped}

        def compute_sample(samples: Mapping[str, Any]) -> dict[str, Any]:
            returned = function(**whole, **{name: sample.unsqueeze(0) for name, sample in samples.items()})
            return {
                name: value.squeeze(0)
                for name, value in _name_values(returned, contract).items()
                if value is not None and _has_batch(contract.outputs[name], lead)
            }

        return torch.vmap(compute_sample)(mapped)

    return run


def _leads(spec: ArraySpec, arguments: Mapping[str, Any], name: str) -> bool:
    """Return True if an argument shows how many axes "..." stands for."""
    return spec.shape.lead and not spec.broadcast and arguments.get(name) is not None


def _has_batch(spec: ArraySpec, lead: int) -> bool:
    """Return True if the first axis of an array stands for the samples; `lead` is the number of axes of "..."."""
    if spec.shape.lead:
        return lead > 0
    return bool(spec.shape.axes) and spec.shape.axes[0].symbols == _BATCH


def _has_samples(spec: ArraySpec, shape: tuple[int, ...], lead: int) -> bool:
    """Return True if an argument has something of its own for each sample; a mask may serve all of them."""
    if not _has_batch(spec, lead):
        return False
    full = len(spec.shape.axes) + (lead if spec.shape.lead else 0)
    return not spec.broadcast or (len(shape) == full and shape[0] > 1)


def _name_values(returned: Any, contract: Contract) -> Mapping[str, Any]:
    """Return what a function returned by the names of the outputs."""
    if isinstance(returned, Mapping):
        return returned
    values = returned if isinstance(returned, tuple | list) else (returned,)
    return dict(zip(contract.outputs, values, strict=False))
