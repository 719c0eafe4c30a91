"""Projections and heads: inputs and parameters of a projection, and the order in which heads are cut and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import permutations, product
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import Given, change_result, read_argument, replace_argument
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.conformance.properties.relations import join_names
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import (
    attend_projected,
    multi_head_attention,
    project_heads,
    split_fused,
    split_heads,
)
from goldformer.spec.formulas.steps import Step, around, hold, instead

_MHA: Final = "multi_head_attention"
_FUSED: Final = "fused_multi_head_attention"
_ROLES: Final = {"q": "queries", "k": "keys", "v": "values"}
_INPUTS: Final = {"q": "query", "k": "key", "v": "value"}
_inputs: Final[ContextVar[Mapping[str, Array]]] = ContextVar("inputs")


def _note_inputs(original: Step, *args: Any, **named: Any) -> Any:
    with hold(_inputs, _read_inputs((args, named))):
        return original(*args, **named)


def _read_inputs(given: Given) -> dict[str, Array]:
    return {role: read_argument(multi_head_attention, name, given) for role, name in _INPUTS.items()}


def _leave_out_biases() -> Iterator[Neighbour]:
    """Yield attentions in which several projections have lost their biases."""
    for roles, words in (("qkv", "the queries, keys and values"), ("qk", "the queries and keys")):

        def drop_biases(original: Step, x: Array, params: Any, of: str, heads: int, roles: str = roles) -> Any:
            without = {name: array for name, array in params.items() if name != f"b_{of}"}
            return original(x, without if of in roles else params, of, heads)

        yield Neighbour(
            f"{_MHA}.{roles}.without-biases", f"the biases of {words} are left out",
            f"Add {join_names([f'b_{role}' for role in roles])}.", {project_heads: around(drop_biases)},
        )  # fmt: skip


def _change_inputs() -> Iterator[Neighbour]:
    """Yield attentions that make two or three of queries, keys and values from other inputs."""
    for sources in product(_ROLES, repeat=len(_ROLES)):
        changed = {role: source for role, source in zip(_ROLES, sources, strict=True) if role != source}
        if len(changed) < 2:
            continue

        def read(original: Step, *args: Any, changed: Mapping[str, str] = changed, **named: Any) -> Any:
            given: Given = (args, named)
            inputs = _read_inputs(given)
            for role, source in changed.items():
                given = replace_argument(multi_head_attention, _INPUTS[role], inputs[source], given)
            return original(*given[0], **given[1])

        says = ", ".join(f"the {_ROLES[role]} from the input of the {_ROLES[s]}" for role, s in changed.items())
        yield Neighbour(
            f"{_MHA}.inputs.{'-'.join(sources)}", f"the projections read {says}",
            "Project the queries from `query`, the keys from `key` and the values from `value`.",
            {multi_head_attention: around(read)},
        )  # fmt: skip


def _change_roles() -> Iterator[Neighbour]:
    """Yield attentions whose projected queries, keys and values change places."""
    for word, order in (
        ("q-k", (1, 0, 2)), ("k-v", (0, 2, 1)), ("q-v", (2, 1, 0)), ("turned", (1, 2, 0)), ("turned-back", (2, 0, 1)),
    ):  # fmt: skip
        names = ["queries", "keys", "values"]
        read = ", ".join(f"{names[place]} as {names[i]}" for i, place in enumerate(order) if place != i)

        def swap(original: Step, *arrays: Any, order: tuple[int, ...] = order) -> Any:
            *projected, mask = arrays
            chosen = [projected[place] for place in order]
            same = all(one.shape == two.shape for one, two in zip(chosen, projected, strict=True))
            return original(*(chosen if same else projected), mask)

        yield Neighbour(
            f"{_MHA}.projected.{word}", f"after the projection the attention takes {read}",
            "Keep queries, keys and values in their order.", {attend_projected: around(swap)},
        )  # fmt: skip


def _divide_by_length(x: Array, number: float, axes: tuple[int, ...]) -> Array:
    length = np.sqrt((x * x).sum(axes, keepdims=True))
    return as_array(x / np.where(length.real < number, x.dtype.type(number), length))


def _divide_by_root_mean_square(x: Array, number: float, axes: tuple[int, ...]) -> Array:
    return as_array(x / np.sqrt((x * x).mean(axes, keepdims=True) + x.dtype.type(number)))


def _normalise(x: Array, number: float, axes: tuple[int, ...]) -> Array:
    return _divide_by_root_mean_square(x - x.mean(axes, keepdims=True), number, axes)


#: What queries and keys may be divided by: an id, words, a function, and its shortest length or its eps.
_NORMS: Final[tuple[tuple[str, str, Callable[..., Array], float], ...]] = (
    ("length", "their length", _divide_by_length, 0.0),
    ("length-clamped", "their length, or by 1e-12 where they are shorter", _divide_by_length, 1e-12),
    *((f"rms-{eps:g}", f"their root mean square with eps = {eps:g}", _divide_by_root_mean_square, eps)
      for eps in (0.0, 1e-8, 1e-6, 1e-5)),
    *((f"layer-norm-{eps:g}", f"a layer normalisation without gamma and beta, of eps = {eps:g}", _normalise, eps)
      for eps in (1e-6, 1e-5)),
)  # fmt: skip


def _normalise_queries_and_keys() -> Iterator[Neighbour]:
    """Yield attentions that normalise queries and keys after their projection."""
    where = (("head", "each head by itself", (3,)), ("whole", "all heads together", (1, 3)))
    scales = (("", "", 0.0), (".unscaled", ", and the scores are not divided by √d_k", 0.5))
    for (word, by, change, number), (part, each, axes), (ending, more, power) in product(_NORMS, where, scales):
        normalise = partial(change, number=number, axes=axes)

        def attend(
            original: Step, query: Array, key: Array, value: Array, mask: Any,
            normalise: Any = normalise, power: float = power,
        ) -> Any:  # fmt: skip
            root = query.dtype.type(query.shape[-1] ** power)
            return original(normalise(query) * root, normalise(key), value, mask)

        yield Neighbour(
            f"{_MHA}.q-k-normalised.{word}.{part}{ending}",
            f"the queries and keys are normalised by {by}, {each}{more}",
            "Make the scores of queries and keys as they are projected, divided by √d_k.",
            {attend_projected: around(attend)},
        )  # fmt: skip


#: The axes of the columns of a fused projection, in words.
_AXES: Final = ("part", "head", "channel")


def _read_columns(parts: Sequence[Array], stored: tuple[int, ...], read: tuple[int, ...]) -> list[Array]:
    """Return the parts (batch, heads, seq, d) of columns that stand in one order of _AXES, read in another one."""
    columns = np.stack([part.swapaxes(1, 2) for part in parts], axis=2)  # (batch, seq, part, head, channel)
    sizes = columns.shape[2:]
    flat = columns.transpose(0, 1, *(2 + axis for axis in stored)).reshape(*columns.shape[:2], -1)
    wrong = flat.reshape(*flat.shape[:2], *(sizes[axis] for axis in read))
    back = wrong.transpose(0, 1, *(2 + read.index(axis) for axis in range(len(sizes))))
    return [back[:, :, place].swapaxes(1, 2).copy() for place in range(len(parts))]


def _list_orders() -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
    """Yield an id and words for each order in which columns may stand, and another in which they are read."""
    names = {order: "-".join(_AXES[axis] for axis in order) for order in permutations(range(len(_AXES)))}
    # Weights whose channels are apart were never seen.
    for stored, read in product([order for order in names if order[-1] == len(_AXES) - 1], names):
        if stored != read:
            ways = [", ".join(_AXES[axis] for axis in order) for order in (read, stored)]
            yield f"{names[read]}.of.{names[stored]}", "as [{}] where they stand as [{}]".format(*ways), stored, read


def _change_fused_order() -> Iterator[Neighbour]:
    """Yield code that projects several roles by one matrix, and cuts it in another order than its columns have."""
    hint = "Cut the columns in the order in which the weights were joined."
    for word, words, stored, read in _list_orders():
        for roles in ("qkv", "kv"):

            def attend(
                original: Step, q: Array, k: Array, v: Array, mask: Any,
                roles: str = roles, stored: Any = stored, read: Any = read,
            ) -> Any:  # fmt: skip
                given, made = _inputs.get(), {"q": q, "k": k, "v": v}
                joined = [made[role] for role in roles]
                # Only what is projected from one array can be projected by one matrix.
                same = all(np.array_equal(given[roles[0]], given[role]) for role in roles)
                if same and all(part.shape == joined[0].shape for part in joined):
                    made |= dict(zip(roles, _read_columns(joined, stored, read), strict=True))
                return original(made["q"], made["k"], made["v"], mask)

            which = "|".join(roles)
            yield Neighbour(
                f"{_MHA}.fused.{roles}.{word}", f"the columns of the fused projection, {which}, are read {words}",
                hint, {multi_head_attention: around(_note_inputs), attend_projected: around(attend)},
            )  # fmt: skip


def _change_fused() -> Iterator[Neighbour]:
    hint = "The columns of the fused projection are laid out as the contract says, [heads, q|k|v, d_k]."

    def blocks(qkv: Array, heads: int) -> list[Array]:
        return [split_heads(part, heads) for part in np.split(qkv, 3, axis=-1)]

    def strided(qkv: Array, heads: int) -> list[Array]:
        return [split_heads(qkv[..., i::3], heads) for i in range(3)]

    def by_channel(qkv: Array, heads: int) -> list[Array]:
        wide = qkv.reshape(*qkv.shape[:-1], heads, -1, 3)
        return [wide[..., i].swapaxes(1, 2) for i in range(3)]

    layouts: tuple[tuple[str, str, Callable[[Array, int], list[Array]]], ...] = (
        ("blocks", "the fused projection is read as three blocks, [q|k|v, heads, d_k]", blocks),
        ("strided", "every third column is a query", strided),
        ("by-channel", "query, key and value alternate in each channel of a head", by_channel),
    )
    for word, title, layout in layouts:
        yield Neighbour(
            f"{_FUSED}.{word}", title, hint,
            {split_fused: instead(lambda qkv, heads, layout=layout: tuple(a.copy() for a in layout(qkv, heads)))},
        )  # fmt: skip
    yield Neighbour(
        f"{_FUSED}.from-the-end", "the columns of the fused projection are read from the end", hint,
        {split_fused: around(lambda original, qkv, heads: original(qkv[..., ::-1], heads))},
    )  # fmt: skip
    for word, order in (("v-q-k", (2, 0, 1)), ("k-v-q", (1, 2, 0))):
        names = "|".join("qkv"[i] for i in order)
        yield Neighbour(
            f"{_FUSED}.order.{word}", f"the fused projection is read in the order {names}", hint,
            {split_fused: change_result(_reorder(order))},
        )  # fmt: skip


def _reorder(order: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda parts: tuple(parts[i] for i in order)


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of projections and heads."""
    yield from _leave_out_biases()
    yield from _change_inputs()
    yield from _change_roles()
    yield from _normalise_queries_and_keys()
    yield from _change_fused_order()
    yield from _change_fused()
