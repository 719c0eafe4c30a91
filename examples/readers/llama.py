"""Three components of Llama 3 and Gemma 2 in plain Python, judged by exported calls: python llama.py calls."""

import json
import sys
from math import cos, exp, pi, sin, sqrt, tanh
from pathlib import Path
from typing import Any

Rows = list[list[float]]


def split(items: Any, size: int) -> Any:
    """Cut a list into parts of one size."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def norm(x: Rows, gamma: list[float], gemma: int) -> Rows:
    """Divide each row by its root mean square; Gemma stores the gains around 0."""
    scales = [1 / sqrt(sum(c * c for c in row) / len(row) + (1e-6 if gemma else 1e-5)) for row in x]
    return [[c * s * (gemma + g) for c, g in zip(row, gamma, strict=True)] for row, s in zip(x, scales, strict=True)]


def times(x: Rows, w: Rows) -> Rows:
    """Multiply two matrices."""
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*w, strict=True)] for row in x]


def plus(x: Rows, y: Rows) -> Rows:
    """Add two matrices."""
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]


def cap(numbers: list[float], limit: float | None) -> list[float]:
    """Bound numbers by a soft cap."""
    return numbers if limit is None else [limit * tanh(number / limit) for number in numbers]


def turn(row: list[float], m: int, base: float, gemma: int) -> list[float]:
    """Turn the pairs in a head of the token at position m: neighbours in Llama, halves in Gemma."""
    turned, half = [*row], len(row) // 2
    for i in range(half):
        (a, b), t = ((i, i + half) if gemma else (2 * i, 2 * i + 1)), m * base ** (-2 * i / len(row))
        turned[a], turned[b] = row[a] * cos(t) - row[b] * sin(t), row[b] * cos(t) + row[a] * sin(t)
    return turned


def activate(x: float, gemma: int) -> float:
    """Return SiLU, or the approximation of GELU that Gemma has."""
    return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) if gemma else x / (1 + exp(-x))


def layer(x: Rows, seen: Any, p: Any, at: str, given: Any, gemma: int) -> Rows:
    """Compute a layer for one sample; seen(h, i, j) is False where the mask hides key j from query i of head h."""
    q, k, v = (times(norm(x, p[f"{at}norm_1.gamma"], gemma), p[f"{at}w_{name}"]) for name in "qkv")
    d_k, base, attended = len(q[0]) // given["num_heads"], given.get("base", 10000), [list[float]() for _ in x]
    for h in range(given["num_heads"]):
        own, shared = (slice(g * d_k, g * d_k + d_k) for g in (h, h * given["num_kv_heads"] // given["num_heads"]))
        keys = [turn(row[shared], j, base, gemma) for j, row in enumerate(k)]
        for i, row in enumerate(q):
            query = [c * given.get("scale", 1 / sqrt(d_k)) for c in turn(row[own], i, base, gemma)]
            scores = cap(times([query], [[*channel] for channel in zip(*keys, strict=True)])[0], given.get("softcap"))
            near = [i - given.get("window", len(x)) < j <= i and seen(h, i, j) for j in range(len(x))]
            shown = [score if is_near else -1e300 for score, is_near in zip(scores, near, strict=True)]
            powers = [exp(score - max(shown)) for score in shown]
            attended[i] += times([[power / sum(powers) for power in powers]], [row[shared] for row in v])[0]
    new = times(attended, p[f"{at}w_o"])
    x = plus(x, norm(new, p[f"{at}post_norm_1.gamma"], gemma) if gemma else new)
    h_2 = norm(x, p[f"{at}norm_2.gamma"], gemma)
    gate, up = (times(h_2, p[f"{at}feed_forward.w_{name}"]) for name in ("gate", "up"))
    hidden = [[activate(g, gemma) * u for g, u in zip(*rows, strict=True)] for rows in zip(gate, up, strict=True)]
    new = times(hidden, p[f"{at}feed_forward.w_down"])
    return plus(x, norm(new, p[f"{at}post_norm_2.gamma"], gemma) if gemma else new)


def model(ids: list[int], p: Any, given: Any, gemma: int) -> Rows:
    """Compute the logits of one sentence; layers 0, 2, 4 … of Gemma are local."""
    x = [[c * (sqrt(len(p["table"][0])) if gemma else 1) for c in p["table"][i]] for i in ids]
    for n in range(given["num_layers"]):
        of_layer = {name: value for name, value in given.items() if name != "window" or n % 2 == 0 or not gemma}
        if "local_base" in given and (n % 2 == 0 or not gemma):
            of_layer["base"] = given["local_base"]
        x = layer(x, lambda _h, _i, j: ids[j] != given.get("pad_id"), p, f"layers.{n}.", of_layer, gemma)
    to_words = [[*column] for column in zip(*p["table"], strict=True)] if gemma else p["w_vocab"]
    return [cap(row, given.get("logit_softcap")) for row in times(norm(x, p["norm.gamma"], gemma), to_words)]


def find(place: Any, shape: list[int]) -> int:
    """Return where the element at a place lies in the list of all; an axis of length 1 serves every index."""
    where = 0
    for index, size in zip(place[len(place) - len(shape) :], shape, strict=True):
        where = where * size + (index if size > 1 else 0)
    return where


def compute(component: str, inputs: Any, p: Any, given: Any, gemma: int) -> list[float]:
    """Return the numbers of the first output of a call."""
    x, mask = inputs.get("x"), inputs.get("mask", {"shape": [], "values": [True]})
    rows = norm(split(x["values"], len(p["gamma"])), p["gamma"], gemma) if component == "rms_norm" else []
    if component == "decoder_only_layer":
        for b, sample in enumerate(split(split(x["values"], x["shape"][2]), x["shape"][1])):
            hides = lambda *at, b=b: mask["values"][find((b, *at), mask["shape"])]  # noqa: E731
            rows += layer(sample, hides, p, "", given, gemma)
    for ids in split(inputs["ids"]["values"], inputs["ids"]["shape"][1]) if "ids" in inputs else []:
        rows += model(ids, p, given, gemma)
    return [number for row in rows for number in row]


for component in ("rms_norm", "decoder_only_layer", "decoder_only_model"):
    calls = json.loads(Path(sys.argv[1], f"{component}.json").read_text(encoding="utf-8"))
    for family in ("llama-3", "gemma-2"):
        options, judged, agreeing = calls["families"][family], 0, 0
        for call in calls["cases"]:
            arrays = call["params"].items()
            p = {n: split(a["values"], a["shape"][1]) if a["shape"][1:] else a["values"] for n, a in arrays}
            for expected in call["expect"]:
                fits = all(options[name] in admitted for name, admitted in expected["options"].items())
                if fits and "outputs" in expected and "cotangent" not in call:
                    output = expected["outputs"][calls["first_output"]]
                    actual = compute(component, call["inputs"], p, call["attributes"], family == "gemma-2")
                    actual = [actual[find(at, output["shape"])] for at in output["at"]] if "at" in output else actual
                    errors = [abs(a - v) for a, v in zip(actual, output["values"], strict=True)]
                    judged, agreeing = judged + 1, agreeing + (max(errors) <= output["tolerance"]["float64"])
        print(f"{component} of {family}: {agreeing} of {judged} cases agree")
