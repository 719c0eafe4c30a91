"""Shapes in signatures, and the checks that hold a call to them: ``def softmax(scores: Float[Tensor, "... n"])``.

One name per axis, the same name for the same size everywhere in a call, a leading "..." for any further axes. A class
states the shapes of its parameters, and numbers have types that say what they may be: Size, Rate, bool. The outermost
call is checked, with the parameters of its module and of those inside; calls within it are not. TypeError refuses the
wrong kind of argument, ValueError a size, a shape, a number or a device, IndexError an id outside the vocabulary.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, ParamSpec, TypeAlias, TypeVar
from typing import get_args, get_origin

import torch
from torch import Tensor, nn

P = ParamSpec("P")
R = TypeVar("R")
#: The size of each axis, and the tensor that set it; "..." stands for a tuple.
Bound: TypeAlias = dict[str, tuple[Any, str]]
Device: TypeAlias = torch.device | str | None


# Not by jaxtyping: heads*d_k asks it for the size of heads first, and while torch.compile traces, nothing fits.
@dataclass(frozen=True)  # no tuple: typing keeps annotations by equality, and would mix those of a copy of this package
class Shape:
    """The kind of a tensor, the names of its axes, and whether it may be None; a kind is subscripted with the rest."""

    kind: str
    axes: tuple[str, ...] = ()
    optional: bool = False

    def __getitem__(self, of: Any) -> Any:
        return Annotated[of[0], replace(self, axes=tuple(of[1].split()))]


if TYPE_CHECKING:
    from typing import Annotated as Bool, Annotated as Float, Annotated as Int, Annotated as Positions
    from typing import Annotated as Words
else:
    Bool, Float, Int, Positions = Shape("bool"), Shape("float"), Shape("int"), Shape("positions")
    Words = Shape("words")  # a mask of tokens, which is broadcast to nothing


def _number(kind: type, is_right: Callable[[Any], bool] | None = None, must: str = "") -> Callable[[str, Any], None]:
    """Make the check of an argument that is no tensor, by its type and its range; NaN is in no range."""
    # A tracer with symbolic sizes passes torch.SymInt.
    kinds = {int: (int, torch.SymInt), float: (int, float), bool: (bool,)}[kind]
    how = {int: "an int: pass int({})", float: "a float: pass float({})", bool: "a bool: pass True or False"}[kind]

    def check(name: str, value: Any) -> None:
        # True and False are ints in Python, and here they are not.
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be {how.format(name)}")
        if is_right is not None and not is_right(value):
            raise ValueError(f"{name}={value} must {must}")

    return check


def _check_dtype(name: str, value: Any) -> None:
    if not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise TypeError(f"{name}={value!r} must be a floating-point torch.dtype: pass torch.float32")


def _check_choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, options))}: pass one of these")


_check_int, _check_bool = _number(int), _number(bool)
_check_size = _number(int, lambda n: n >= 1, "be at least 1: pass a positive size")
_FINITE: Final = "be finite and {} 0: pass a small number such as {}".format
_PART: Final = "lie in 0 … 1: pass the part of the whole, 0.1 for ten percent"
Size = Annotated[int, _check_size]
Seed = Annotated[int, _number(int, lambda n: n >= 0, "be at least 0: pass any number that is")]
Rate = Annotated[float, _number(float, lambda x: 0 <= x <= 1, _PART)]
Positive = Annotated[float, _number(float, lambda x: 0 < x < math.inf, _FINITE("above", "1e-5"))]
NotNegative = Annotated[float, _number(float, lambda x: 0 <= x < math.inf, _FINITE("at least", "0.01"))]
FloatDtype = Annotated[torch.dtype, _check_dtype]


def check_heads_divide(num_heads: Any, width: int, of: str) -> None:
    """Refuse a head count that does not cut ``width`` into equal blocks."""
    _check_size("num_heads", num_heads)
    if width % num_heads != 0:
        must = f"does not divide the width {width} of {of}: choose a divisor of {width}"
        raise ValueError(f"num_heads={num_heads} {must}")


def check_groups(heads: int, kv_heads: int) -> None:
    """Refuse query heads that the heads of keys do not divide."""
    if heads % kv_heads:
        raise ValueError(f"heads={heads} is no multiple of kv_heads={kv_heads}: choose a multiple of {kv_heads}")


def check_gains(gamma_q: Tensor | None, gamma_k: Tensor | None) -> None:
    """Refuse the gain of queries without that of keys, and the other way round."""
    if (gamma_q is None) != (gamma_k is None):
        missing, given = ("gamma_q", "gamma_k") if gamma_q is None else ("gamma_k", "gamma_q")
        raise ValueError(f"{missing} is None and must be a tensor next to {given}: pass both gains, or neither")


def check_rotary_width(rotary_width: int | None, x: Tensor) -> None:
    """Refuse an odd number of channels, and a rotary width that is odd or larger than it: channels turn in pairs."""
    channels = x.shape[-1]
    if channels % 2:
        fix = "cut x into heads of even width, or pad it by one channel"
        raise ValueError(f"x has shape {tuple(x.shape)} and must have an even last axis, for pairs of channels: {fix}")
    if rotary_width is not None and (rotary_width % 2 or rotary_width > channels):
        must = f"must be even and at most {channels}, the channels of x: pass the number of channels that turn"
        raise ValueError(f"rotary_width={rotary_width} {must}")


def check_cached_mask(mask: Tensor | None, so_far: int) -> None:
    """Refuse a mask that does not have a column for each token so far, those of earlier calls and the new ones."""
    if mask is not None:
        _check_tensor("mask", mask, "bool")
        if mask.shape[-1] != so_far:
            must = (
                f"must have a last axis of {so_far}, the cached tokens and the new ones: pass the mask of all of them"
            )
            raise ValueError(f"mask has shape {tuple(mask.shape)} and {must}")


_INTEGERS: Final = (torch.int64, torch.int32)
_DTYPES: Final = {"bool": (torch.bool,), "words": (torch.bool,), "int": _INTEGERS, "positions": _INTEGERS}


def _check_tensor(name: str, tensor: Any, kind: str) -> None:
    """Refuse anything but a tensor of a kind."""
    if not isinstance(tensor, Tensor):
        fix = "it cannot be left out" if tensor is None else f"convert it with torch.as_tensor({name})"
        raise TypeError(f"{name} is of type {type(tensor).__name__} and must be a torch.Tensor: {fix}")
    dtype = tensor.dtype
    # Not uint8 for ids: torch indexes with it as with a mask.
    if not (dtype.is_floating_point if kind == "float" else dtype in _DTYPES[kind]):
        integer = f"torch.int64 or torch.int32: convert it with {name}.long()"
        must = {
            "float": f"floating point: convert it with {name}.float()",
            "int": integer,
            "positions": integer,
            "words": f"torch.bool, True = a word: convert a mask of ones and zeros with {name} != 0",
            "bool": f"torch.bool, True = may attend: convert a mask of ones and zeros with {name} != 0, "
            f"an additive mask of 0 and -inf with {name} == 0",
        }
        raise TypeError(f"{name} has dtype {tensor.dtype} and must be {must[kind]}")


def _check_same(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors on different devices, or floating-point tensors of different dtype."""
    if tensor.is_floating_point() and tensor.dtype != other.dtype:
        fix = f"convert it with {name}.to({other.dtype})"
        raise TypeError(f"{name} has dtype {tensor.dtype} and must have that of {other_name}, {other.dtype}: {fix}")
    if tensor.device != other.device:
        must = f"must be on the device of {other_name}, {other.device}: move it with {name}.to('{other.device}')"
        raise ValueError(f"{name} is on {tensor.device} and {must}")


def _check_axes(name: str, tensor: Tensor, axes: tuple[str, ...], bound: Bound) -> None:
    """Refuse a shape that contradicts the sizes in ``bound``, and add the sizes that it names first."""
    shape, more = tuple(tensor.shape), axes[0] == "..."
    trailing = axes[1:] if more else axes
    leading = len(shape) - len(trailing)
    if leading < 0 or (leading > 0 and not more):
        count = f"{'at least ' if more else ''}{len(trailing)} {'axis' if len(trailing) == 1 else 'axes'}"
        raise ValueError(f"{name} has shape {shape} and must be ({', '.join(axes)}): reshape it to {count}")
    if 0 in shape:
        must = f"must be ({', '.join(axes)}) without an empty axis: leave empty batches and sequences out"
        raise ValueError(f"{name} has shape {shape} and {must}")
    for axis, size in zip(axes, (shape[:leading], *shape[leading:]) if more else shape, strict=True):
        first_size, owner = bound.setdefault(axis, (size, name))
        if size != first_size:
            # nn.Linear keeps (out, in), so this is the most frequent error in a weight.
            is_weight = name.rpartition(".")[2].startswith("w_")
            hint = " (weights are (in, out): transpose those of nn.Linear)" if is_weight else ""
            must = f"must be ({', '.join(axes)}) with {axis}={first_size} as in {owner}: make the two agree{hint}"
            raise ValueError(f"{name} has shape {shape} and {must}")


def _check_broadcast(name: str, tensor: Tensor, axes: tuple[str, ...], bound: Bound, of: str) -> None:
    """Refuse a mask or positions that do not broadcast to these axes, those of the scores or of the tokens."""
    own, sizes = tuple(tensor.shape), [bound[axis][0] for axis in axes]
    shape = tuple(n for size in sizes for n in (size if isinstance(size, tuple) else (size,)))
    tail = shape[len(shape) - len(own) :]
    if len(own) > len(shape) or any(size not in (1, full) for size, full in zip(own, tail, strict=True)):
        fix = f"give it size 1 on the axes it repeats along, such as {name}[:, None] for all heads of a sample"
        must = f"must broadcast to the {of}, ({', '.join(axes)}) = {shape}"
        raise ValueError(f"{name} has shape {own} and {must}: {fix}")


def check_special_id(id_name: str, value: Any, does: str, name: str, ids: Tensor) -> None:
    """Refuse a special id that the dtype of ids cannot hold, such as pad_id; ``does`` is "pads these ids"."""
    _check_int(id_name, value)
    # Compared with an int32 tensor, 2**32 + 1 is cut to 1: a pad_id out of range would hide a real token.
    limits = torch.iinfo(ids.dtype)
    if not limits.min <= value <= limits.max:
        fix = f"pass the id that {does}, or convert them with {name}.long()"
        raise ValueError(f"{id_name}={value} must fit {name} of {ids.dtype}, {limits.min} … {limits.max}: {fix}")


def can_read(tensor: Tensor) -> bool:
    """Return True if the tensor has values: not on the meta device, nor while torch.compile traces."""
    return not (torch.compiler.is_compiling() or tensor.is_meta)


def check_ids_below(name: str, ids: Tensor, vocab: int, what: str) -> None:
    """Refuse an id outside a vocabulary of ``vocab`` words."""
    # On CUDA reading costs a synchronisation, but an unchecked bad id would kill the context of the whole process.
    if can_read(ids):
        # Python's indexing would take −1 for the last row.
        outside = (ids < 0) | (ids >= vocab)
        if outside.any():
            position = outside.nonzero()[0].tolist()
            raise IndexError(f"{name}{position}={ids[tuple(position)].item()} must lie in 0 … {vocab - 1}, {what}")


def check_word(name: str, value: int, vocab: int, does: str) -> None:
    """Refuse the id of a word outside a vocabulary of ``vocab`` words; ``does`` says what the word is for."""
    if not 0 <= value < vocab:
        raise IndexError(f"{name}={value} must lie in 0 … {vocab - 1}, the rows of table: pass the id that {does}")


def check_positions(name: str, tokens: int, table: Tensor | None) -> None:
    """Refuse more tokens than there are learned positions."""
    if table is not None and tokens > table.shape[0]:
        must = f"must have a row for each of the {tokens} positions of {name}: cut {name}, or pass a longer table"
        raise ValueError(f"position_table has shape {tuple(table.shape)} and {must}")


#: True while a checked call is running in this thread.
_INSIDE: Final = ContextVar("_INSIDE", default=False)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Hold the arguments of each call to the signature, and the parameters of a module to its class."""
    stated = {name: _read_hint(p.annotation) for name, p in inspect.signature(function).parameters.items()}
    shapes = {name: found for name, found in stated.items() if isinstance(found, Shape)}
    numbers = {name: found for name, found in stated.items() if found is not None and name not in shapes}
    names = tuple(stated)

    @functools.wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **named}
        for name, check in numbers.items():
            if name in given:
                check(name, given[name])
        # A tracer runs checks once and forgets them, so that those inside may run too.
        tracing = torch.compiler.is_compiling()
        if not shapes or (not tracing and _INSIDE.get()):
            return function(*args, **named)
        module = given.get(names[0])
        _CallCheck(given, shapes, module if isinstance(module, nn.Module) else None).run()
        if tracing:
            return function(*args, **named)
        token = _INSIDE.set(True)
        try:
            return function(*args, **named)
        finally:
            _INSIDE.reset(token)

    return run


def _read_hint(hint: Any) -> Any:
    """Return what an annotation states: a shape, the check of a number, or None."""
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    if get_origin(hint) is Literal:
        return functools.partial(_check_choice, options=get_args(hint))
    if hint in (bool, int):
        return _check_bool if hint is bool else _check_int
    found = _read_hint(get_args(hint)[0]) if NoneType in get_args(hint) else None
    if isinstance(found, Shape):
        return replace(found, optional=True)
    return found and (lambda name, value: None if value is None else found(name, value))


class Module(nn.Module):
    """A module whose class states the shapes of its parameters, and whose constructor and forward are checked."""

    stated: ClassVar[Mapping[str, Shape]] = {}
    stated_within: ClassVar[Mapping[str, Shape]] = {}
    #: Set where the parameters are the caller's, as with torch.func.functional_call: then they may be to blame.
    borrows_parameters: bool = False

    def __init_subclass__(cls) -> None:
        """Read what the class states."""
        for name, hint in inspect.get_annotations(cls).items():
            if isinstance(shape := _read_hint(hint), Shape):
                cls.stated = {**cls.stated, name: shape}
                if name.startswith("w_"):  # its bias need not be stated, and may be None
                    bias = Shape("float", shape.axes[-1:], optional=True)
                    cls.stated = {**cls.stated, name.replace("w_", "b_", 1): bias}
        # Within a layer, what a query, a key or a value is read from is as wide as the layer.
        wide = dict.fromkeys(("d_query", "d_key", "d_value"), "d_model")
        cls.stated_within = {n: replace(s, axes=tuple(wide.get(a, a) for a in s.axes)) for n, s in cls.stated.items()}
        for name in {"__init__", "forward"} & vars(cls).keys():
            setattr(cls, name, checked(vars(cls)[name]))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class _CallCheck:
    """The check of one call: its arguments, and the module that it calls, if it calls one."""

    def __init__(self, given: Mapping[str, Any], shapes: Mapping[str, Shape], module: Any) -> None:
        self.given, self.shapes, self.module = given, shapes, module
        self.first: tuple[str, Tensor] | None = None  # sets the dtype and the device; a float, if there are any

    def run(self) -> None:
        """Refuse what does not fit."""
        bound: Bound = {}
        # A module's own parameters are right, so an argument is to blame.
        owns = self.module is not None and not getattr(self.module, "borrows_parameters", False)
        kinds = ("module", "int", "float") if owns else ("float", "module", "int")
        for kind in (*kinds, "words", "bool", "positions"):
            if kind == "module" and self.module is not None:
                self.check_parameters(bound)
            for name, shape in self.shapes.items():
                if shape.kind == kind and name in self.given:
                    self.check_tensor(name, self.given[name], shape, bound, self.given.get("num_heads"))

    def check_tensor(self, name: str, tensor: Any, shape: Shape, bound: Bound, num_heads: Any) -> None:
        """Check one tensor."""
        if tensor is None and shape.optional:
            return
        _check_tensor(name, tensor, shape.kind)
        self.first = self.first or (name, tensor)
        _check_same(name, tensor, *self.first)
        if shape.kind in ("bool", "positions"):
            of = "scores" if shape.kind == "bool" else "tokens"
            _check_broadcast(name, tensor, shape.axes, bound, of)
            return
        _check_axes(name, tensor, shape.axes, bound)
        for axis in shape.axes:
            if axis.startswith("heads*") and bound[axis][1] == name:
                check_heads_divide(num_heads, bound[axis][0], name)
        if shape.kind == "int":
            self.check_words(name, tensor)

    def check_parameters(self, bound: Bound) -> None:
        """Check the parameters of the module; an axis has one size in each part of it, d_model in all of them."""
        for path, part in self.module.named_modules():
            sizes = {axis: bound[axis] for axis in ("d_model",) if axis in bound} if path else bound
            num_heads = getattr(part, "num_heads", None)
            for name, shape in getattr(part, "stated_within" if path else "stated", {}).items():
                full_name = f"{path}.{name}" if path else name
                self.check_tensor(full_name, part._parameters.get(name), shape, sizes, num_heads)
            if "d_model" in sizes:
                bound.setdefault("d_model", (sizes["d_model"][0], "the module"))
            if num_heads is not None:
                bound.setdefault("heads", (num_heads, "the module"))

    def check_words(self, name: str, ids: Tensor) -> None:
        """Check that token ids have rows in a table, and that pad_id could be one of them."""
        if "pad_id" in self.given:
            check_special_id("pad_id", self.given["pad_id"], f"pads these {name}", name, ids)
        elif getattr(self.module, "pad_id", None) is not None:
            check_special_id("pad_id", self.module.pad_id, f"pads the {name}", name, ids)
        table = self.given.get("table", getattr(self.module, "table", None))
        if table is not None:
            what = "the rows of table: use the vocabulary that the table was made for, or a longer table"
            check_ids_below(name, ids, table.shape[0], what)
        check_positions(name, ids.shape[1], getattr(self.module, "position_table", None))


__all__ = ["Bool", "Float", "Int", "Positions", "Words"]
