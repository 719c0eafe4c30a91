"""The device "pretend": the arithmetic of the CPU under the rules of an accelerator, for machines without one.

A tensor on it holds a tensor of the CPU, which every operation runs on. An operation on a tensor of the device and a
tensor of the CPU raises, as on CUDA. Two kinds of CPU tensors are allowed, as there: scalars without axes, and indices.
An index beyond a tensor fails an assertion on the device, as on CUDA: from then on each operation there raises.

Importing this module imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME: Final = "pretend"

#: The operations that move values from one device to another.
_COPIES: Final = (torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.copy)

#: The operation that decides if a module's parameter can take over the memory of its copy.
_CAN_TAKE_OVER: Final = torch.ops.aten._has_compatible_shallow_copy_type

#: The operations whose indices may be on the CPU if the indexed tensor, the first argument, is on the device.
_INDEXED: Final = (
    torch.ops.aten.index,
    torch.ops.aten.index_put,
    torch.ops.aten.index_put_,
    torch.ops.aten._index_put_impl_,
)

#: The operations that look for their indices only on the device.
_LOOKUPS: Final = (
    torch.ops.aten.embedding,
    torch.ops.aten.gather,
    torch.ops.aten.index_select,
    torch.ops.aten.take,
    torch.ops.aten.scatter,
    torch.ops.aten.scatter_,
    torch.ops.aten.scatter_add,
    torch.ops.aten.scatter_add_,
    torch.ops.aten.nll_loss_forward,
    *_INDEXED,
)

#: The words in which PyTorch refuses an index on the CPU.
_BEYOND: Final = re.compile(r"out of (range|bounds|DATA bounds)")

#: The error that ended the device for this process, if one did.
_losses: list[str] = []


class PretendTensor(Tensor):
    """A tensor on the pretend device; `held` is the tensor of the CPU that has its values."""

    held: Tensor

    # Modules of torch.nn take other paths for tensors that override functions.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[PretendTensor], held: Tensor) -> PretendTensor:
        """Put a tensor of the CPU on the device; it is not copied. NotImplementedError for a nested one."""
        if held.is_nested:
            raise NotImplementedError(f"the device {NAME} (PrivateUse1) has no nested tensors")
        tensor: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=torch.device(NAME, 0)
        )
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types it as a function without operation
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation that has a tensor of the device among its arguments."""
        del types
        return _run(func, *args, **(kwargs or {}))

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Name the tensors inside: nn.Module.to then moves a parameter in place, so that tied weights stay tied."""
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, Tensor], context: None, size: Any, stride: Any) -> PretendTensor:
        """Put the tensor inside on the device again."""
        del context, size, stride
        return PretendTensor(inner["held"])

    def __format__(self, format_spec: str) -> str:
        return format(self.detach().cpu(), format_spec)

    @property
    def data(self) -> Tensor:
        """The same values, outside the graph of autograd; assigning to it replaces the values."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        vars(torch._C.TensorBase)["data"].__set__(self, value)  # it replaces all but what Python keeps
        self.held = _enter(value)

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values as an array, if `force` allows a copy; TypeError without it, as on CUDA."""
        if not force:
            _refuse_numpy(self.device)
        return self.detach().cpu().numpy(force=True)


class DirectDispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types
    """Run the operations of a `with` block here, before PyTorch looks at the class of their tensors.

    To see if the class is that of distributed tensors, PyTorch imports those: a second, once a process.
    The block's operations on tensors of the CPU pass through here too, unchanged.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives no types; this method does

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: PyTorch would import its compiler only to keep it from compiling this class."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation, on whichever device."""
        del types
        return _run(func, *args, **(kwargs or {}))


def _refuse_numpy(device: torch.device) -> NoReturn:
    raise TypeError(
        f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def explain_unavailable(device: str) -> str | None:
    """Return the reason why `pretend` or `pretend:N` cannot be used here, or None; the first call registers it."""
    if device not in (NAME, f"{NAME}:0"):
        return f"there is one device {NAME} here, no {device}"
    return register() or _explain_no_gradients()


@cache
def register() -> str | None:
    """Register the device with PyTorch, once a process and for good; return why that is impossible, or None."""
    set_up = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if set_up is None:
        return f"this PyTorch ({torch.__version__}) cannot register a device that is written in Python"
    real = torch.accelerator.current_accelerator()
    if real is not None:
        return f"there is a real device here, {real.type}, which PyTorch would no longer find next to {NAME}"
    try:
        set_up(NAME, backend_module=_make_device_module())
        for_all, by_name = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        for_all.fallback(_run, "PrivateUse1")
        # torch.tensor bypasses the dispatch of subclasses and modes, where only a registration by name works.
        by_name.impl("empty_strided", partial(_run, torch.ops.aten.empty_strided.default), "PrivateUse1")
        by_name.impl("_copy_from", _copy_from, "PrivateUse1")
        by_name.impl("_local_scalar_dense", _read_scalar, "PrivateUse1")
        # PyTorch writes it as other operations where a device has no kernel: they round differently.
        by_name.impl("silu_backward", partial(_run, torch.ops.aten.silu_backward.default), "PrivateUse1")
        _registered.extend((for_all, by_name))
        return None if _works() else f"this PyTorch ({torch.__version__}) runs a device written in Python differently"
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"PyTorch refuses to register it: {error}"


#: Keeps the registrations alive: they end with their libraries.
_registered: Final[list[torch.library.Library]] = []


def _make_device_module() -> Any:
    """Return what becomes torch.pretend.

    It is not available, so code that asks torch.accelerator for a device still computes on the CPU.
    """
    return SimpleNamespace(
        is_initialized=lambda: True,
        is_available=lambda: False,
        current_device=lambda: 0,
        device_count=lambda: 1,
        # Operations draw from the generator of the CPU.
        manual_seed_all=lambda _: None,
        get_rng_state=lambda _=None: torch.get_rng_state(),
        set_rng_state=lambda state, _=None: torch.set_rng_state(state),
        # Without it torch.autocast refuses the device, also where code switches autocast off, as checkpoints do.
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        _is_in_bad_fork=lambda: False,
    )


def _works() -> bool:
    """Return True if values and refusals are those that they must be."""
    with DirectDispatch():
        number = torch.tensor([3.0], device=NAME)
        try:
            torch.mul(number, torch.ones(1))
        except RuntimeError as error:
            return "same device" in str(error) and bool((number * number).tolist() == [9.0])
    return False


@cache
def _explain_no_gradients() -> str | None:
    """Return why nothing can be differentiated on the device, or None.

    At its first backward pass PyTorch starts a thread for each device, but not for a device that comes later.
    """
    number = torch.tensor([3.0], device=NAME, requires_grad=True)
    try:
        torch.autograd.grad((number * number).sum(), number)
    except RuntimeError:
        return (
            f"gradients were computed in this process before the device {NAME} was there: "
            "check in a new process, or before everything else"
        )
    return None


@cache
def _read_traits(operation: Any) -> tuple[bool, bool, bool]:
    """Return if an operation moves values, asks for a parameter's memory, and changes the sizes of its argument."""
    packet = operation.overloadpacket
    return packet in _COPIES, packet is _CAN_TAKE_OVER, torch.Tag.inplace_view in operation.tags


def _run(operation: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the held tensors, and put its results on the device."""
    # By hand rather than by PyTorch's trees, which take longer than most operations. Lists have no lists in them.
    given = [
        one
        for value in (*args, *kwargs.values())
        for one in (value if isinstance(value, (list, tuple)) else (value,))
        if isinstance(one, (Tensor, torch.device))
    ]
    if not any(map(_is_on_device, given)):
        return operation(*args, **kwargs)
    if _losses:
        raise RuntimeError(_losses[0])
    copies, can_take_over, changes_sizes = _read_traits(operation)
    all_there = all(map(_is_on_device, given))
    if can_take_over and not all_there:
        return False
    if not (copies or all_there):
        _refuse_mixture(operation, args, kwargs)
    try:
        returned = operation(*map(_enter, args), **{name: _enter(value) for name, value in kwargs.items()})
    except (IndexError, RuntimeError) as error:
        if operation.overloadpacket in _LOOKUPS and _BEYOND.search(str(error)):
            _losses.append(f"{NAME} error: device-side assert triggered: {error} ({operation})")
            raise RuntimeError(_losses[0]) from error
        raise
    if changes_sizes:
        with torch._C._DisableTorchDispatch():
            operation(*args, **kwargs)  # changes the sizes and strides of the outer tensor too
    # A tensor that is changed in place stays the same object.
    outer = {id(_enter(value)): value for value in given if isinstance(value, Tensor)}
    device = kwargs.get("device")

    def put(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(put, value))
        if not isinstance(value, Tensor) or (device is not None and device.type != NAME):
            return value
        return outer[id(value)] if id(value) in outer else PretendTensor(value)

    return put(returned)


# torch gives the last argument by its position.
def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: FBT001, FBT002
    """Copy the values of a tensor, on whichever device, into another one."""
    _enter(target).copy_(_enter(source), non_blocking)
    return target


def _read_scalar(tensor: Tensor) -> Any:
    return _enter(tensor).item()


def _enter(value: Any) -> Any:
    """Return the held tensor of a tensor, the CPU for the device, a list of those in a list; else the argument."""
    if isinstance(value, PretendTensor):
        return value.held
    if isinstance(value, (list, tuple)):
        return [_enter(one) for one in value]
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _is_on_device(value: Any) -> bool:
    """Return True for a tensor of the device, and for the device itself."""
    return isinstance(value, PretendTensor) or (isinstance(value, torch.device) and value.type == NAME)


def _refuse_mixture(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise RuntimeError if an argument is on the CPU and another one is not."""
    given = [*_list_tensors(operation._schema.arguments, args, kwargs)]
    if all(_is_real(tensor) for _, tensor in given):
        return
    takes_indices = operation.overloadpacket in _INDEXED and not _is_real(given[0][1])
    for argument, tensor in given:
        written = argument.alias_info is not None and argument.alias_info.is_write
        allowed = (tensor.ndim == 0 and not written) or (argument.name == "indices" and takes_indices)
        if _is_real(tensor) and not allowed:
            # Without the shape, so that the cases that fail for one cause say the same.
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and "
                f"{tensor.device}! ({argument.name} of {operation} is on {tensor.device})"
            )


def _is_real(tensor: Tensor) -> bool:
    return not isinstance(tensor, PretendTensor)


def _list_tensors(
    arguments: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, Tensor]]:
    """Yield the tensors of a call, also those in lists, each with the argument of the schema."""
    by_name = {argument.name: argument for argument in arguments}
    for argument, value in [*zip(arguments, args, strict=False), *((by_name[name], v) for name, v in kwargs.items())]:
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, Tensor):
                yield argument, one
