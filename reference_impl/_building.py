"""Build modules from given parameters: the function forms use a module, so that its forward is the only computation."""

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def build(kind: type[Module], **parts: Any) -> Module:
    """Build a module from existing settings, submodules and tensors, without parameters of its own.

    All become plain attributes. No tensor is copied, so gradients reach the tensors of the caller. Two calls share
    nothing, so threads may call the same function.
    """
    # Not torch.func.functional_call: it replaces existing parameters, which every call would have to make first, and
    # torch.compile traces neither nn.Parameter nor functional_call on a module that the traced code has made. One
    # module for all calls would be shared between threads.
    module = kind.__new__(kind)
    super(kind, module).__init__()
    module.__dict__.update(parts)
    return module


def build_inner(kind: type[Module], **parts: Any) -> Module:
    """Build a module inside another one, which checks the arguments of both; this one checks nothing."""
    return build(kind, _check_input=lambda *_: None, **parts)


def select_params(params: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the parameters of a block by their names within it: "encoder.0.norm_1.gamma" as "norm_1.gamma"."""
    dotted = f"{prefix}."
    return {name.removeprefix(dotted): tensor for name, tensor in params.items() if name.startswith(dotted)}
