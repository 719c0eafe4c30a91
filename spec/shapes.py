"""Symbolic shapes such as `[batch, heads*d_k]`, matched against the shapes of arrays.

An axis is a product of an integer and named sizes; "..." stands for any leading axes, the same
ones wherever a contract writes it. `bind` solves a contract's shapes for the sizes of one call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: The call decides how many axes "..." stands for; their lengths are bound under this name.
LEAD = "..."


@dataclass(frozen=True, slots=True)
class Axis:
    """The product of `factor` and the sizes named in `symbols`."""

    factor: int
    symbols: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | int) -> Axis:
        """Read `5`, `d_k` or `3*heads*d_k`; ValueError on anything else."""
        factor, symbols = 1, []
        for part in str(text).split("*"):
            word = part.strip()
            if word.isdigit():
                factor *= int(word)
            elif word.isidentifier():
                symbols.append(word)
            else:
                raise ValueError(f"{text!r} is no axis: write a size, a number, or a product such as 3*heads*d_k")
        return cls(factor, tuple(symbols))

    def __str__(self) -> str:
        head = [str(self.factor)] if self.factor != 1 or not self.symbols else []
        return "*".join((*head, *self.symbols))

    def rename(self, names: Mapping[str, str]) -> Axis:
        """Return the axis with other names for its symbols."""
        return Axis(self.factor, tuple(names.get(symbol, symbol) for symbol in self.symbols))

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return its length; KeyError names a symbol that `sizes` does not have."""
        size = self.factor
        for symbol in self.symbols:
            size *= sizes[symbol]
        return size


@dataclass(frozen=True, slots=True)
class Shape:
    """A symbolic shape; `lead` says whether it begins with "..."."""

    axes: tuple[Axis, ...]
    lead: bool = False

    @classmethod
    def parse(cls, axes: Sequence[str | int]) -> Shape:
        """Read a list of axes whose first may be "..."."""
        lead = bool(axes) and axes[0] == LEAD
        return cls(tuple(Axis.parse(axis) for axis in axes[lead:]), lead)

    def __str__(self) -> str:
        return "(" + ", ".join(([LEAD] if self.lead else []) + [str(axis) for axis in self.axes]) + ")"

    def rename(self, names: Mapping[str, str]) -> Shape:
        """Return the shape with other names for its symbols."""
        return Shape(tuple(axis.rename(names) for axis in self.axes), self.lead)

    def sizes(self, sizes: Mapping[str, int], lead: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return the concrete shape; KeyError names a missing symbol."""
        return (*(lead if self.lead else ()), *(axis.size(sizes) for axis in self.axes))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The sizes it mentions, in order."""
        return tuple(symbol for axis in self.axes for symbol in axis.symbols)


class ContractViolation(Exception):
    """Arrays that contradict each other or their contract; `arguments` are those who disagree."""

    def __init__(self, message: str, arguments: tuple[str, ...]) -> None:
        super().__init__(message)
        self.arguments = arguments


@dataclass
class Binder:
    """The sizes of one call, and the argument that fixed each."""

    sizes: dict[str, int] = field(default_factory=dict)
    lead: tuple[int, ...] | None = None
    fixed_by: dict[str, str] = field(default_factory=dict)
    _waiting: list[tuple[str, Axis, int]] = field(default_factory=list)

    def fix(self, symbol: str, value: int, argument: str) -> None:
        """Bind a size; ContractViolation if it is bound to another value."""
        known = self.sizes.setdefault(symbol, value)
        by = self.fixed_by.setdefault(symbol, argument)
        if known != value:
            raise ContractViolation(
                f"{argument} gives {symbol} = {value}, but {by} gives {symbol} = {known}", (argument, by)
            )

    def fit(self, argument: str, shape: Shape, got: tuple[int, ...]) -> None:
        """Match an array's shape; ContractViolation names the arguments that disagree."""
        rank = len(shape.axes)
        if len(got) < rank or (len(got) > rank and not shape.lead):
            raise ContractViolation(f"{argument} has shape {got}, the contract says {shape}", (argument,))
        if shape.lead:
            head = got[: len(got) - rank]
            if self.lead is None:
                self.lead, self.fixed_by[LEAD] = head, argument
            elif head != self.lead:
                by = self.fixed_by[LEAD]
                raise ContractViolation(f"{argument} has leading axes {head}, but {by} has {self.lead}", (argument, by))
        for axis, size in zip(shape.axes, got[-rank:] if rank else (), strict=True):
            # Most axes are one size, or known by now, and need no solving. The others are solved in their order.
            if not self._waiting:
                if axis.factor == 1 and len(axis.symbols) == 1:
                    symbol = axis.symbols[0]
                    if self.sizes.setdefault(symbol, size) == size:
                        self.fixed_by.setdefault(symbol, argument)
                        continue
                elif all(symbol in self.sizes for symbol in axis.symbols) and axis.size(self.sizes) == size:
                    continue
            self._waiting.append((argument, axis, size))
        if self._waiting:
            self._settle()

    def _settle(self) -> None:
        """Solve waiting axes with at most one unknown symbol until no more can be solved."""
        progress = True
        while progress:
            progress, waiting, self._waiting = False, self._waiting, []
            for argument, axis, size in waiting:
                unknown = [symbol for symbol in axis.symbols if symbol not in self.sizes]
                if len(unknown) > 1:
                    self._waiting.append((argument, axis, size))
                    continue
                self._solve(argument, axis, size, unknown)
                progress = True

    def _solve(self, argument: str, axis: Axis, size: int, unknown: list[str]) -> None:
        known = axis.factor * math.prod(self.sizes[s] for s in axis.symbols if s not in unknown)
        others = tuple(self.fixed_by[s] for s in axis.symbols if s in self.fixed_by)
        if not unknown:
            if size != known:
                raise ContractViolation(
                    f"{argument} has an axis of {size} where {axis} = {known}"
                    + (f" by {', '.join(dict.fromkeys(others))}" if others else ""),
                    (argument, *others),
                )
        elif known == 0 or size % known:
            raise ContractViolation(
                f"{argument} has an axis of {size} = {axis}, which {known} does not divide", (argument, *others)
            )
        else:
            self.fix(unknown[0], size // known, argument)

    def fit_broadcast(self, argument: str, shape: Shape, got: tuple[int, ...]) -> None:
        """Check, once the sizes are known, that an array broadcasts to `shape` without enlarging it."""
        target = shape.sizes(self.sizes, self.lead or ())
        padded = (1,) * (len(target) - len(got)) + got
        if len(got) > len(target) or any(g not in (1, t) for g, t in zip(padded, target, strict=False)):
            raise ContractViolation(
                f"{argument} has shape {got}, which does not broadcast to {shape} = {target}", (argument,)
            )
