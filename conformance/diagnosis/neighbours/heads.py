"""Projections and heads: inputs and parameters of a projection, and the order in which heads are cut and put back."""

from __future__ import annotations

import math
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
    Params,
    attend_projected,
    fused_multi_head_attention,
    merge_heads,
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


def _take_if_same_shape(other: Any, own: Any) -> Any:
    return own if other is None or own is None or other.shape != own.shape else other


def _take_parameters(params: Params, role: str, other: str, names: str) -> Params:
    """Return parameters with those of another projection in the place of a role's own, where they have their shape.

    A bias that is absent is 0: the other's absent bias takes the own one away, and its bias stands where none was.
    """
    own, theirs = params[f"w_{role}"], params[f"w_{other}"]
    if own.shape[-1] != theirs.shape[-1] or ("w" in names and own.shape != theirs.shape):
        return params
    taken = {n: params.get(f"{n}_{other}") for n in names}
    changed = {name: array for name, array in params.items() if name not in [f"{n}_{role}" for n in names]}
    return changed | {f"{n}_{role}": array for n, array in taken.items() if array is not None}


def _change_projections() -> Iterator[Neighbour]:
    for role, words in _ROLES.items():
        for other, theirs in _ROLES.items():
            if role == other:
                continue

            def read_other(
                original: Step, x: Array, params: Any, of: str, heads: int, role: str = role, other: str = other
            ) -> Any:
                return original(_take_if_same_shape(_inputs.get()[other], x) if of == role else x, params, of, heads)

            yield Neighbour(
                f"{_MHA}.{role}.from-input-of-{other}", f"the {words} are made from the input of the {theirs}",
                f"Project the {words} from `{_INPUTS[role]}`.",
                {multi_head_attention: around(_note_inputs), project_heads: around(read_other)},
            )  # fmt: skip
            for what, names in (("weight and bias", "wb"), ("weight", "w"), ("bias", "b")):

                def use_other(
                    original: Step, x: Array, params: Any, of: str, heads: int,
                    role: str = role, other: str = other, names: str = names,
                ) -> Any:  # fmt: skip
                    return original(
                        x, _take_parameters(params, role, other, names) if of == role else params, of, heads
                    )

                yield Neighbour(
                    f"{_MHA}.{role}.{names}-of-{other}", f"the {words} are projected with the {what} of the {theirs}",
                    f"Project the {words} with w_{role} and b_{role}.", {project_heads: around(use_other)},
                )  # fmt: skip

            if role < other:

                def exchange(
                    original: Step, x: Array, params: Any, of: str, heads: int, pair: tuple[str, str] = (role, other)
                ) -> Any:
                    if of not in pair:
                        return original(x, params, of, heads)
                    there = pair[0] if of == pair[1] else pair[1]
                    return original(x, _take_parameters(params, of, there, "wb"), of, heads)

                yield Neighbour(
                    f"{_MHA}.{role}.parameters-with-{other}",
                    f"the projections of the {words} and the {theirs} have each other's parameters",
                    f"Project the {words} with w_{role} and b_{role}.", {project_heads: around(exchange)},
                )  # fmt: skip

        def leave_out(original: Step, x: Array, params: Any, of: str, heads: int, role: str = role) -> Any:
            square = params[f"w_{role}"].shape[0] == params[f"w_{role}"].shape[1]
            return split_heads(x, heads) if of == role and square else original(x, params, of, heads)

        yield Neighbour(
            f"{_MHA}.{role}.not-projected", f"the {words} are not projected",
            f"Project the {words} with w_{role} and b_{role}.", {project_heads: around(leave_out)},
        )  # fmt: skip

        def drop_bias(original: Step, x: Array, params: Any, of: str, heads: int, role: str = role) -> Any:
            without = {name: array for name, array in params.items() if name != f"b_{role}"}
            return original(x, without if of == role else params, of, heads)

        yield Neighbour(
            f"{_MHA}.{role}.without-bias", f"the bias of the {words} is left out", f"Add b_{role}.",
            {project_heads: around(drop_bias)},
        )  # fmt: skip


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


def _add_input() -> Iterator[Neighbour]:
    """Yield attentions with a residual of their own."""
    for step, name, words in (
        (multi_head_attention, "query", "queries"), (multi_head_attention, "value", "values"),
        (fused_multi_head_attention, "x", "tokens"),
    ):  # fmt: skip

        def add(original: Step, *args: Any, step: Step = step, name: str = name, **named: Any) -> Any:
            found, given = original(*args, **named), read_argument(step, name, (args, named))
            return {**found, "output": found["output"] + given} if given.shape == found["output"].shape else found

        component = step.__name__
        yield Neighbour(
            f"{component}.residual-of-{name}", f"the attention adds the {words} that it reads to its output",
            "An attention has no residual of its own: the layer adds it.", {step: around(add)},
        )  # fmt: skip


def _scale_before_bias() -> Iterator[Neighbour]:
    """Yield projections that are divided by √d_k before their bias is added: the bias is not divided."""
    for role in ("q", "k"):

        def scale(original: Step, x: Array, params: Any, of: str, heads: int, role: str = role) -> Any:
            bias = params.get(f"b_{role}")
            if of != role or bias is None:
                return original(x, params, of, heads)
            root = math.sqrt(bias.shape[-1] // heads)
            return original(x, {**params, f"b_{role}": (bias * root).astype(bias.dtype)}, of, heads)

        yield Neighbour(
            f"{_MHA}.{role}.scaled-before-bias",
            f"the {_ROLES[role]} are divided by √d_k before their bias is added, and the bias is not",
            f"Add b_{role} first, or divide it too.", {project_heads: around(scale)},
        )  # fmt: skip


def _interleave_weights() -> Iterator[Neighbour]:
    """Yield projections whose weights belong to the heads by turns, and whose biases by blocks, as is right."""
    for roles in ("qkv", "qk", "q", "k", "v"):

        def project(original: Step, x: Array, params: Any, of: str, heads: int, roles: str = roles) -> Any:
            weight = params[f"w_{of}"]
            turned = weight.reshape(len(weight), -1, heads).swapaxes(1, 2).reshape(weight.shape)
            return original(x, {**params, f"w_{of}": turned} if of in roles else params, of, heads)

        words = join_names([_ROLES[role] for role in roles])
        yield Neighbour(
            f"{_MHA}.weights-interleaved.{roles}",
            f"every heads-th column of the weights of {words} belongs to a head, but its bias is a block",
            "Head h has the columns h·d_k … (h + 1)·d_k − 1 of the weight.", {project_heads: around(project)},
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


_OF_COLUMNS: Final = "Head h has the columns h·d_k … (h + 1)·d_k − 1, and the heads are put back in the same order."


def _change_splits() -> Iterator[Neighbour]:
    splits: tuple[tuple[str, str, Callable[[Array, Array, int], Array]], ...] = (
        ("interleaved", "every heads-th column belongs to a head",
         lambda _, x, n: x.reshape(*x.shape[:-1], -1, n).transpose(0, 3, 1, 2)),
        ("reversed", "the heads are cut from the last column block to the first", lambda heads, _, __: heads[:, ::-1]),
        ("next", "each head has the column block of the next one", lambda heads, _, __: np.roll(heads, -1, 1)),
        ("before", "each head has the column block of the one before", lambda heads, _, __: np.roll(heads, 1, 1)),
        ("channels-reversed", "the channels of each head are reversed", lambda heads, _, __: heads[..., ::-1]),
        ("by-reshape", "heads are cut only by a reshape",
         lambda _, x, n: x.reshape(x.shape[0], n, x.shape[1], -1)),
        ("by-columns", "tokens and channels of a head are mixed by a reshape of the transposed array",
         lambda _, x, n: x.swapaxes(1, 2).reshape(x.shape[0], n, x.shape[1], -1)),
        ("batch-first", "heads are cut as if the batch came first, where the sequence does",
         lambda _, x, n: x.swapaxes(0, 1).reshape(x.shape[0], n, x.shape[1], -1)),
    )  # fmt: skip
    for word, title, split in splits:

        def cut(original: Step, x: Array, num_heads: int, split: Any = split) -> Array:
            return as_array(split(original(x, num_heads), x, num_heads))

        # Heads in another order from their cut until they are put back are right for all that is returned.
        either = title.replace("are cut", "are cut, or put back,") if word == "reversed" else title
        yield Neighbour(f"{_MHA}.split.{word}", either, _OF_COLUMNS, {split_heads: around(cut)})
        for roles in ("q", "k", "v", "qk", "kv"):
            words = " and ".join(f"the {_ROLES[role]}" for role in roles)

            def cut_some(
                original: Step, x: Array, params: Any, of: str, heads: int, roles: str = roles, split: Any = split
            ) -> Any:
                cut = original(x, params, of, heads)
                return as_array(split(cut, _join_heads(cut), heads)) if of in roles else cut

            yield Neighbour(
                f"{_MHA}.split.{word}.{roles}",
                f"{title}, only for {words}",
                _OF_COLUMNS,
                {project_heads: around(cut_some)},
            )

            def cut_fused(original: Step, qkv: Array, num_heads: int, roles: str = roles, split: Any = split) -> Any:
                cut = zip(_ROLES, original(qkv, num_heads), strict=True)
                return tuple(
                    as_array(split(part, _join_heads(part), num_heads)).copy() if role in roles else part
                    for role, part in cut
                )

            yield Neighbour(
                f"{_FUSED}.split.{word}.{roles}",
                f"{title}, only for {words}",
                _OF_COLUMNS,
                {split_fused: around(cut_fused)},
            )


def _change_merges() -> Iterator[Neighbour]:
    merges: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
        ("interleaved", "the columns of the heads are interleaved when they are put back",
         lambda h: h.transpose(0, 2, 3, 1).reshape(h.shape[0], h.shape[2], -1)),
        ("reversed", "the heads are put back in the reverse order",
         lambda h: h[:, ::-1].swapaxes(1, 2).reshape(h.shape[0], h.shape[2], -1)),
        ("next", "each head is put back in the place of the one before",
         lambda h: _join_heads(np.roll(h, -1, 1))),
        ("before", "each head is put back in the place of the next one",
         lambda h: _join_heads(np.roll(h, 1, 1))),
        ("accumulated", "each head's result contains those of the heads before it, as of a sum that is not cleared",
         lambda h: _join_heads(np.cumsum(h, axis=1))),
        ("first-everywhere", "the first head stands in the place of every head",
         lambda h: np.broadcast_to(h[:, :1], h.shape).swapaxes(1, 2).reshape(h.shape[0], h.shape[2], -1)),
        ("averaged", "the mean of the heads stands in the place of every head",
         lambda h: np.broadcast_to(h.mean(1, keepdims=True), h.shape).swapaxes(1, 2)
         .reshape(h.shape[0], h.shape[2], -1)),
    )  # fmt: skip
    for word, title, merge in merges:
        for name in (_MHA, _FUSED):
            yield Neighbour(
                f"{name}.merge.{word}", title, _OF_COLUMNS,
                {merge_heads: instead(lambda heads, merge=merge: as_array(merge(heads)))},
            )  # fmt: skip


#: The axes of heads before the channels, in words.
_OF_HEADS: Final = ("batch", "heads", "tokens")


#: The reshapes of the splits `by-reshape` and `batch-first`.
_NAMED_SPLITS: Final = (((0, 2, 1), (0, 1, 2)), ((2, 0, 1), (0, 1, 2)))


def _reshape_heads(heads: Array, stored: tuple[int, ...], read: tuple[int, ...]) -> Array:
    """Return heads (batch, heads, seq, d) that lie in memory in one order of _OF_HEADS, reshaped as another one."""
    channels = len(_OF_HEADS)
    wrong = heads.transpose(*stored, channels).reshape(*(heads.shape[axis] for axis in read), heads.shape[-1])
    return as_array(wrong.transpose(*(read.index(axis) for axis in range(channels)), channels))


def _reshape_over_batch() -> Iterator[Neighbour]:
    """Yield heads that are cut or put back by a reshape whose axes are in another order than in memory."""
    for stored, read in permutations(permutations(range(len(_OF_HEADS))), 2):
        names = ["-".join(_OF_HEADS[axis] for axis in order) for order in (stored, read)]
        ways = [", ".join(_OF_HEADS[axis] for axis in order) for order in (stored, read)]
        says = "by a reshape of [{}, channels] as [{}, channels]".format(*ways)
        hint = "Move the axes to the order in which you name them before you reshape."

        def merge(original: Step, heads: Array, stored: Any = stored, read: Any = read) -> Array:
            return as_array(original(_reshape_heads(heads, stored, read)))

        def cut(original: Step, x: Array, num_heads: int, stored: Any = stored, read: Any = read) -> Array:
            return _reshape_heads(original(x, num_heads), stored, read)

        for name in (_MHA, _FUSED):
            yield Neighbour(
                f"{name}.merge.{names[0]}.as.{names[1]}", f"the heads are put back {says}", hint,
                {merge_heads: around(merge)},
            )  # fmt: skip
        if (stored, read) not in _NAMED_SPLITS:
            yield Neighbour(
                f"{_MHA}.split.{names[0]}.as.{names[1]}", f"the heads are cut {says}", hint, {split_heads: around(cut)}
            )


def _join_heads(heads: Array) -> Array:
    """Put heads back into columns: (batch, heads, seq, d) → (batch, seq, heads·d)."""
    return as_array(heads.swapaxes(1, 2).reshape(heads.shape[0], heads.shape[2], -1))


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
    for word, order in (
        ("q-k", (1, 0, 2)),
        ("k-v", (0, 2, 1)),
        ("q-v", (2, 1, 0)),
        ("v-q-k", (2, 0, 1)),
        ("k-v-q", (1, 2, 0)),
    ):
        names = "|".join("qkv"[i] for i in order)
        yield Neighbour(
            f"{_FUSED}.order.{word}", f"the fused projection is read in the order {names}", hint,
            {split_fused: change_result(_reorder(order))},
        )  # fmt: skip


def _reorder(order: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda parts: tuple(parts[i] for i in order)


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of projections and heads."""
    yield from _change_projections()
    yield from _leave_out_biases()
    yield from _add_input()
    yield from _scale_before_bias()
    yield from _interleave_weights()
    yield from _change_inputs()
    yield from _change_roles()
    yield from _normalise_queries_and_keys()
    yield from _change_splits()
    yield from _change_merges()
    yield from _reshape_over_batch()
    yield from _change_fused_order()
    yield from _change_fused()
