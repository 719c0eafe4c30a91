"""How the function forms lend their arguments to a module, whose forward is the only place of the computation."""

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def lend(kind: type[Module], **parts: Any) -> Module:
    """Make a module out of settings, submodules and tensors that exist already; it draws no parameters of its own.

    All become plain attributes, and no tensor is copied: gradients reach the tensors of the caller. Two calls share
    nothing, so threads may call the same function.
    """
    # Not torch.func.functional_call, which puts tensors in the place of parameters that exist. Those would have to be
    # made at every call, and torch.compile traces neither nn.Parameter nor functional_call on a module that the
    # traced code has made. One module kept for all calls would be shared between threads.
    module = kind.__new__(kind)
    super(kind, module).__init__()
    module.__dict__.update(parts)
    return module


def lend_inner(kind: type[Module], **parts: Any) -> Module:
    """Make a module for the inside of another one, which checks the arguments of both: it checks nothing itself."""
    return lend(kind, _check_input=_accept, **parts)


def _accept(*_: Any) -> None:
    pass


def scoped(params: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the parameters of a block, by their names within it: "norm_1.gamma" as "gamma"."""
    dotted = f"{prefix}."
    return {name.removeprefix(dotted): tensor for name, tensor in params.items() if name.startswith(dotted)}
