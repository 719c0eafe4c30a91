"""The array libraries of adapters: make their arrays, and read the arrays that they return."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from goldformer.adapters.dtypes import WireArray, choose_filler, round_to_dtype

DType = Literal["float64", "float32", "float16", "bfloat16"]
Array = NDArray[Any]

#: The kinds of device that an adapter can declare. One for the CPU and CUDA also works on the pretend device.
DEVICES: Final = ("cpu", "cuda", "xpu", "mps")

#: The switches of PyTorch by which products of matrices on CUDA are computed in fewer bits than their dtype has.
CUDA_SWITCHES: Final = (
    "allow_tf32",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)

#: The setting of JAX that says in how many bits matrix products of float32 run.
_MATMUL_PRECISION: Final = "jax_default_matmul_precision"

#: The setting of JAX that says if there are arrays of 64 bits.
_X64: Final = "jax_enable_x64"

#: The GPUs of PyTorch, in words.
_GPUS: Final = {"cuda": "CUDA GPU", "xpu": "XPU", "mps": "MPS GPU"}

#: The width of the matrices, and the number of their products, that keep a GPU busy for some hundredths of a second.
_BUSY_WIDTH: Final = 2048
_BUSY_PRODUCTS: Final = 100

#: The memory layout of an array: row by row without gaps, a view of an array with its last two axes swapped, or a view
#: of every other element of an array twice as large, with zeros between them.
Layout = Literal["contiguous", "transposed", "strided"]


class ArrayLibrary(ABC):
    """One array library. The suite's own arrays are NumPy's: float64, bool or int64."""

    name: str
    type_name: str
    dtypes: tuple[str, ...] = get_args(DType)
    devices: tuple[str, ...] = ("cpu",)
    #: True if its arrays can be views of others.
    views: bool = False
    #: True if it has automatic differentiation.
    differentiates: bool = False

    @abstractmethod
    def unavailable(self, device: str) -> str | None:
        """Return the reason why a device cannot be used here, or None."""

    def explain_missing_dtype(self, device: str, dtype: str) -> str | None:
        """Return the reason why a device that can be used has no arrays of a dtype, or None."""
        del device, dtype
        return None

    @contextlib.contextmanager
    def keep_settings(self) -> Iterator[None]:
        """Restore the global settings of the library afterwards, which the suite changes."""
        yield

    def choose_dtype(self, dtype: str) -> None:
        """Set what the library needs for calls in a dtype, until that is restored."""
        del dtype

    def choose_precision(self, *, tf32: bool) -> None:
        """Let matrix products of float32 run in TF32 on a GPU, or in full precision, until that is restored."""
        del tf32

    def read_settings(self) -> tuple[bool, int]:
        """Return whether matrix products of float32 may run in TF32 on a GPU, and the number of threads."""
        return False, 1

    @contextlib.contextmanager
    def limit_threads(self, number: int) -> Iterator[bool]:
        """Compute on `number` threads, then restore the old number; yield False if it cannot be chosen here."""
        del number
        yield False

    @contextlib.contextmanager
    def keep_busy(self, device: str) -> Iterator[None]:
        """Let a GPU compute something else during the block, so that a race there is more often lost."""
        del device
        yield

    @abstractmethod
    def make(self, array: Array, dtype: str, device: str) -> Any:
        """Make a fresh array of the library: floats rounded to `dtype`, ids as wide as it has, masks boolean."""

    def lay_out(self, array: Any, layout: Layout) -> Any:
        """Return the same values in a memory layout; unchanged if it has no views, or for one axis to transpose."""
        del layout
        return array

    def expand(self, array: Any, shape: tuple[int, ...], *, copies: bool) -> Any:
        """Return an array that is broadcast to a shape, in its own memory or in a copy."""
        wide = array.broadcast_to(shape) if hasattr(array, "broadcast_to") else np.broadcast_to(array, shape)
        return (wide.clone() if hasattr(wide, "clone") else wide.copy()) if copies else wide

    def surround(self, array: Any, before: int, after: int, around: float) -> tuple[Any, Any]:
        """Return the same values as a contiguous part of a larger array, and that array, with one axis.

        `before` and `after` are the numbers of elements around it, which are `around`; only libraries with views do it.
        """
        raise NotImplementedError(f"{self.name} arrays are never parts of others")

    def overwrite(self, array: Any, other: Any) -> bool:
        """Write the values of another array into the memory of one; return False if it cannot be written to."""
        del array, other
        return False

    @contextlib.contextmanager
    def fill_empty(self, number: float) -> Iterator[bool]:
        """Fill the memory that code allocates without values in the block; yield False if that is impossible here.

        Floats become `number`; integers and booleans become 1 if it is NaN, and 0 if not.
        """
        del number
        yield False

    @abstractmethod
    def is_array(self, thing: Any) -> bool:
        """Return True if `thing` is an array of this library."""

    def dtype(self, array: Any) -> str:
        """Return the name of its dtype, such as float32, bool or int64."""
        return str(array.dtype)

    def device(self, array: Any) -> str:
        """Return the kind of device that it is on, such as cpu or cuda."""
        del array
        return "cpu"

    @abstractmethod
    def numpy(self, array: Any) -> Array:
        """Return its values, every float widened to float64 exactly."""

    def same(self, one: Any, other: Any) -> bool:
        """Return True if two arrays hold equal values; NaN equals NaN."""
        mine, theirs = self.numpy(one), self.numpy(other)
        return bool(np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f"))

    def differentiate(
        self, run: Callable[[Mapping[str, Any]], Any], leaves: Mapping[str, Any], cotangent: Any
    ) -> dict[str, Any] | None:
        """Return the gradients of the leaves, given that of the output of `run`; None without autodiff."""
        del run, leaves, cotangent
        return None

    def has_own_backward(self, output: Any) -> bool:
        """Return True if the implementation wrote a backward pass for a part of what gave `output`."""
        del output
        return False


@cache
def _name_dtype(dtype: np.dtype[Any]) -> str:
    return str(dtype)


class NumPy(ArrayLibrary):
    """numpy.ndarray."""

    name = "numpy"
    type_name = "numpy.ndarray"
    dtypes = ("float64", "float32", "float16")
    views = True

    def unavailable(self, device: str) -> str | None:
        """Return None for the CPU, the only device of NumPy."""
        return None if device == "cpu" else f"NumPy arrays live on the CPU, not on {device}"

    @contextlib.contextmanager
    def limit_threads(self, number: int) -> Iterator[bool]:
        """Limit the threads of the matrix products; NumPy itself has one."""
        with threadpool_limits(number):
            yield True

    def make(self, array: Array, dtype: str, device: str) -> Array:
        """Return a writable copy."""
        del device
        return array.astype(dtype if array.dtype.kind == "f" else array.dtype, copy=True)

    def lay_out(self, array: Array, layout: Layout) -> Array:
        """Return a view, or the array itself for the contiguous layout."""
        if layout == "strided":
            return np.stack((array, np.zeros_like(array)), axis=-1)[..., 0]
        return array.swapaxes(-1, -2).copy().swapaxes(-1, -2) if layout == "transposed" and array.ndim > 1 else array

    def surround(self, array: Array, before: int, after: int, around: float) -> tuple[Array, Array]:
        """Return a view of a larger array, and that array."""
        whole = np.full(before + array.size + after, choose_filler(array.dtype.kind, around), array.dtype)
        whole[before : before + array.size] = array.ravel()
        return whole[before : before + array.size].reshape(array.shape), whole

    def overwrite(self, array: Any, other: Any) -> bool:
        """Copy the values, unless the array is a scalar or read-only."""
        if not isinstance(array, np.ndarray) or not array.flags.writeable:
            return False
        np.copyto(array, other, casting="unsafe")
        return True

    @contextlib.contextmanager
    def fill_empty(self, number: float) -> Iterator[bool]:
        """Replace `np.empty` and `np.empty_like`: what a module imported by these names stays as it was."""

        def fill(make: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(make)
            def make_filled(*given: Any, **options: Any) -> Any:
                array = make(*given, **options)
                if isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
                    array.fill(choose_filler(array.dtype.kind, number))
                return array

            return make_filled

        makers: dict[str, Callable[..., Any]] = {"empty": np.empty, "empty_like": np.empty_like}
        try:
            for name, make in makers.items():
                setattr(np, name, fill(make))
            yield True
        finally:
            for name, make in makers.items():
                setattr(np, name, make)

    def is_array(self, thing: Any) -> bool:
        """Return True for arrays and for NumPy's scalars, which operations on 0-d arrays return."""
        return isinstance(thing, (np.ndarray, np.generic))

    def dtype(self, array: Any) -> str:
        """Return the name of its dtype, which NumPy computes at each access."""
        return _name_dtype(array.dtype)

    def numpy(self, array: Any) -> Array:
        """Return the values, floats widened to float64."""
        plain = np.asarray(array)
        return plain.astype(np.float64) if plain.dtype.kind == "f" else plain

    def same(self, one: Any, other: Any) -> bool:
        """Compare the values; NaN equals NaN."""
        # NaN differs from itself, so equal NaNs need the slower comparison.
        equal = np.array_equal(one, other) or (one.dtype.kind == "f" and np.array_equal(one, other, equal_nan=True))
        return bool(equal)


class Torch(ArrayLibrary):
    """torch.Tensor; importing this class does not import torch, using it does."""

    name = "torch"
    type_name = "torch.Tensor"
    devices = DEVICES
    views = True
    differentiates = True

    @cached_property
    def _torch(self) -> Any:
        import torch  # seconds, and an optional dependency

        return torch

    def unavailable(self, device: str) -> str | None:
        """Return the reason why there is no such device, or None; `cuda:1` is the second GPU."""
        if device == "cpu":
            return None
        if device.startswith("pretend"):
            from goldformer.adapters import pretend_device  # imports torch

            return pretend_device.explain_unavailable(device)
        kind, _, index = device.partition(":")
        name = _GPUS.get(kind)
        if name is None or (index and not index.isdecimal()):
            return (
                f"there is no device {device}: write cpu, pretend, {', '.join(_GPUS)}, or one with its number, cuda:1"
            )
        module = getattr(self._torch, kind)
        if not (self._torch.backends.mps if kind == "mps" else module).is_available():
            return f"no {name} here"
        count = module.device_count()
        return None if int(index or 0) < count else f"there are {count} {name}s here, no {device}"

    def explain_missing_dtype(self, device: str, dtype: str) -> str | None:
        """Explain that the device has no float64: no MPS GPU has it, and not every XPU."""
        kind = device.partition(":")[0]
        if dtype != "float64" or kind not in ("mps", "xpu"):
            return None
        if kind == "xpu" and self._torch.xpu.get_device_properties(device).has_fp64:
            return None
        return f"{_GPUS[kind]}s have no float64" if kind == "mps" else f"this {_GPUS[kind]} has no float64"

    @contextlib.contextmanager
    def keep_settings(self) -> Iterator[None]:
        """Restore the number of threads, and in how few bits CUDA may compute."""
        threads, backends = self._torch.get_num_threads(), self._torch.backends
        switches = [(backends.cudnn, "allow_tf32"), *((backends.cuda.matmul, name) for name in CUDA_SWITCHES)]
        before = [getattr(owner, name) for owner, name in switches]
        try:
            yield
        finally:
            self._torch.set_num_threads(threads)
            for (owner, name), value in zip(switches, before, strict=True):
                setattr(owner, name, value)

    def choose_precision(self, *, tf32: bool) -> None:
        """Allow TF32 or forbid it; CUDA adds products of halves in float32 in any case."""
        backends = self._torch.backends
        for name in CUDA_SWITCHES:
            setattr(backends.cuda.matmul, name, tf32 and name == "allow_tf32")
        backends.cudnn.allow_tf32 = tf32

    def read_settings(self) -> tuple[bool, int]:
        """Read the switch of matrix products, and the threads of one operation."""
        return bool(self._torch.backends.cuda.matmul.allow_tf32), int(self._torch.get_num_threads())

    @contextlib.contextmanager
    def limit_threads(self, number: int) -> Iterator[bool]:
        """Set the number of threads of one operation."""
        before = self._torch.get_num_threads()
        self._torch.set_num_threads(number)
        try:
            yield True
        finally:
            self._torch.set_num_threads(before)

    @contextlib.contextmanager
    def keep_busy(self, device: str) -> Iterator[None]:
        """Multiply matrices on another stream of a CUDA GPU; it waits for its end, and nothing else does."""
        if not device.startswith("cuda"):
            yield
            return
        stream = self._torch.cuda.Stream(device)
        with self._torch.cuda.stream(stream):
            matrix = self._torch.zeros(_BUSY_WIDTH, _BUSY_WIDTH, device=device)
            for _ in range(_BUSY_PRODUCTS):
                matrix = matrix @ matrix
        yield
        stream.synchronize()

    def make(self, array: Array, dtype: str, device: str) -> Any:
        """Make a fresh contiguous tensor; on the meta device it has no values."""
        # NumPy rounds to these two as torch does, in the copy that is needed anyway. It rounds to halves differently.
        by_numpy = array.dtype.kind == "f" and dtype in ("float32", "float64")
        tensor = self._torch.from_numpy(array.astype(dtype) if by_numpy else np.array(array))
        if array.dtype.kind == "f" and not by_numpy:
            tensor = tensor.to(getattr(self._torch, dtype))
        return tensor if device == "cpu" else tensor.to(device)

    def lay_out(self, array: Any, layout: Layout) -> Any:
        """Return a view, or the array itself for the contiguous layout."""
        if layout == "strided":
            return self._torch.stack((array, self._torch.zeros_like(array)), dim=-1)[..., 0]
        return array.mT.contiguous().mT if layout == "transposed" and array.ndim > 1 else array

    def surround(self, array: Any, before: int, after: int, around: float) -> tuple[Any, Any]:
        """Return a view of a larger tensor, and that tensor."""
        size, kind = array.numel(), "f" if array.is_floating_point() else "i"
        whole = array.new_full((before + size + after,), choose_filler(kind, around))
        whole[before : before + size] = array.reshape(-1)
        return whole[before : before + size].view(array.shape), whole

    def overwrite(self, array: Any, other: Any) -> bool:
        """Copy the values into the tensor, whatever autograd knows of it."""
        try:
            with self._torch.no_grad():
                array.detach().copy_(other)
        except RuntimeError:  # several of its elements share one place, or inference mode made it
            return False
        return True

    @contextlib.contextmanager
    def fill_empty(self, number: float) -> Iterator[bool]:
        """Fill what `torch.empty` and its relatives return, on whichever device, also where C++ calls them."""
        from goldformer.adapters.filled_memory import FilledMemory  # imports torch

        with FilledMemory(number):
            yield True

    def is_array(self, thing: Any) -> bool:
        """Return True for tensors and their subclasses, such as nn.Parameter."""
        return isinstance(thing, self._torch.Tensor)

    def dtype(self, array: Any) -> str:
        """Return the name without the prefix torch."""
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Any) -> str:
        """Return the type of the device, without its index."""
        return str(array.device.type)

    def numpy(self, array: Any) -> Array:
        """Detach the tensor, copy it to the CPU, and widen floats to float64."""
        if array.dtype == self._torch.bfloat16:
            array = array.float()  # NumPy has no bfloat16, and not every device float64
        values: Array = array.numpy(force=True)
        if values.dtype.kind != "f":
            return values
        with np.errstate(invalid="ignore"):  # a NaN is no fault of this conversion
            return values.astype(np.float64, copy=False)

    def same(self, one: Any, other: Any) -> bool:
        """Compare the values; NaN equals NaN."""
        if self._torch.equal(one, other):
            return True
        # NaN differs from itself, so equal NaNs need this slower comparison.
        both = one.is_floating_point() and self._torch.equal(one.isnan(), other.isnan())
        return bool(both and self._torch.equal(one.nan_to_num(), other.nan_to_num()))

    def differentiate(
        self, run: Callable[[Mapping[str, Any]], Any], leaves: Mapping[str, Any], cotangent: Any
    ) -> dict[str, Any] | None:
        """Differentiate by autograd; leave out a leaf that no gradient reaches."""
        tracked = {name: tensor.requires_grad_() for name, tensor in leaves.items()}
        output = run(tracked)
        if not self.is_array(output) or not output.requires_grad:
            return {}
        if output.shape != cotangent.shape:
            given, wanted = tuple(output.shape), tuple(cotangent.shape)
            raise RuntimeError(f"the output has the shape {given}, its gradient {wanted}")
        # The gradient of Σ cotangent·output by the output is the cotangent, exactly. Given to grad as an argument, the
        # cotangent makes torch import its symbolic shapes and sympy: half a second.
        loss = (cotangent * output).sum()
        # As training does it: a reentrant checkpoint refuses torch.autograd.grad. But `backward` adds to the gradients
        # of all leaves, also of parameters that belong to the implementation.
        before = [(node.variable, node.variable.grad) for node in list_nodes(loss) if hasattr(node, "variable")]
        try:
            for leaf, _ in before:
                leaf.grad = None
            loss.backward()
            return {name: tensor.grad for name, tensor in tracked.items() if tensor.grad is not None}
        finally:
            for leaf, gradient in before:
                leaf.grad = gradient

    def has_own_backward(self, output: Any) -> bool:
        """Return True if the graph of `output` has a torch.autograd.Function that is not one of torch's own."""
        functions = [getattr(type(node), "_forward_cls", None) for node in list_nodes(output)]
        # Compiled code and checkpoints are functions of torch, whose backward pass autograd writes.
        return any(f is not None and f.__module__.partition(".")[0] != "torch" for f in functions)


def list_nodes(output: Any) -> set[Any]:
    """Return the nodes of the graph that autograd recorded for a tensor: its operations, and one for each leaf."""
    waiting, seen = [getattr(output, "grad_fn", None)], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen


class Jax(ArrayLibrary):
    """jax.Array; importing this class does not import jax, using it does.

    Its 64 bits (jax_enable_x64) are enabled for float64 only. They decide what numbers without a dtype become, and
    without them float64 silently becomes float32: most code for the other dtypes is written and run without them.
    """

    name = "jax"
    type_name = "jax.Array"
    devices = ("cpu", "cuda")
    differentiates = True

    @cached_property
    def _jax(self) -> Any:
        import jax  # seconds, and an optional dependency

        return jax

    def unavailable(self, device: str) -> str | None:
        """Return the reason why there is no such device, or None; CUDA needs the CUDA build of jax."""
        kind, _, index = device.partition(":")
        try:
            count = len(self._jax.devices(kind))
        except RuntimeError:
            return f"JAX finds no {kind} device here"
        return None if int(index or 0) < count else f"there are {count} {kind} devices here, no {device}"

    @contextlib.contextmanager
    def keep_settings(self) -> Iterator[None]:
        """Restore the precision of matrix products, and whether 64 bits are enabled."""
        config = self._jax.config
        before = {name: getattr(config, name) for name in (_MATMUL_PRECISION, _X64)}
        try:
            yield
        finally:
            for name, value in before.items():
                config.update(name, value)

    def choose_dtype(self, dtype: str) -> None:
        """Enable 64 bits for float64, and disable them for every other dtype."""
        self._jax.config.update(_X64, dtype == "float64")

    def choose_precision(self, *, tf32: bool) -> None:
        """Ask for full precision, or leave the choice to JAX, which takes TF32 on a GPU that has it."""
        self._jax.config.update(_MATMUL_PRECISION, None if tf32 else "highest")

    def read_settings(self) -> tuple[bool, int]:
        """Read the precision; JAX chooses its threads itself."""
        return getattr(self._jax.config, _MATMUL_PRECISION) is None, 1

    def make(self, array: Array, dtype: str, device: str) -> Any:
        """Make a fresh array, ids as int32 without 64 bits; arrays of jax are immutable."""
        kind, _, index = device.partition(":")
        if array.dtype.kind == "f":
            self.choose_dtype(dtype)
        values = self._jax.numpy.array(array, dtype=dtype if array.dtype.kind == "f" else None)
        return self._jax.device_put(values, self._jax.devices(kind)[int(index or 0)])

    def is_array(self, thing: Any) -> bool:
        """Return True for arrays, also for those traced for a gradient."""
        return isinstance(thing, self._jax.Array)

    def device(self, array: Any) -> str:
        """Return the platform; jax's gpu is cuda."""
        platform = str(next(iter(array.devices())).platform)
        return "cuda" if platform == "gpu" else platform

    def numpy(self, array: Any) -> Array:
        """Return the values, floats widened to float64."""
        floating = self._jax.numpy.issubdtype(array.dtype, np.floating)
        return np.asarray(array).astype(np.float64) if floating else np.asarray(array)

    def differentiate(
        self, run: Callable[[Mapping[str, Any]], Any], leaves: Mapping[str, Any], cotangent: Any
    ) -> dict[str, Any] | None:
        """Differentiate by jax.vjp; a leaf that no gradient reaches has a gradient of zeros."""
        try:
            _, backward = self._jax.vjp(run, dict(leaves))
            (gradients,) = backward(cotangent)
        except (TypeError, ValueError) as error:  # the output differs from the cotangent in form, shape or dtype
            raise RuntimeError(str(error)) from error
        return dict(gradients)


class Wire(ArrayLibrary):
    """WireArray: the arguments and outputs of an implementation in another process."""

    name = "process"
    type_name = "WireArray"

    def unavailable(self, device: str) -> str | None:
        """Return None for the CPU: messages are made in its memory."""
        return None if device == "cpu" else f"an implementation in another process gets no arrays on {device}"

    def make(self, array: Array, dtype: str, device: str) -> WireArray:
        """Round floats to `dtype`; leave ids and masks unchanged."""
        del device
        if array.dtype.kind == "f":
            return WireArray(dtype, round_to_dtype(array, dtype))
        return WireArray("bool" if array.dtype.kind == "b" else "int64", array)

    def is_array(self, thing: Any) -> bool:
        """Return True for a WireArray."""
        return isinstance(thing, WireArray)

    def numpy(self, array: Any) -> Array:
        """Return the values, floats widened to float64."""
        values: Array = array.values
        return values.astype(np.float64) if values.dtype.kind == "f" else values

    def same(self, one: Any, other: Any) -> bool:
        """Compare dtypes and values; NaN equals NaN."""
        return bool(one.dtype == other.dtype) and super().same(one, other)


LIBRARIES: Final[Mapping[str, ArrayLibrary]] = {"torch": Torch(), "numpy": NumPy(), "jax": Jax(), Wire.name: Wire()}
