"""Three components of Llama 3 in plain Python, judged by what `goldformer export` wrote: python llama.py calls."""

import json
import sys
from math import cos, exp, sin, sqrt
from pathlib import Path
from typing import Any

Rows = list[list[float]]
NEWER = {"cotangent", "window", "scale", "softcap", "local_base", "logit_softcap"}


def split(items: Any, size: int) -> Any:
    """Cut a list into parts of one size."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def norm(x: Rows, gamma: list[float]) -> Rows:
    """Divide each row by its root mean square."""
    scales = [1 / sqrt(sum(c * c for c in row) / len(row) + 1e-5) for row in x]
    return [[c * scale * g for c, g in zip(row, gamma, strict=True)] for row, scale in zip(x, scales, strict=True)]


def times(x: Rows, w: Rows) -> Rows:
    """Multiply two matrices."""
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*w, strict=True)] for row in x]


def plus(x: Rows, y: Rows) -> Rows:
    """Add two matrices."""
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]


def turn(row: list[float], m: int, base: float) -> list[float]:
    """Turn the pairs of neighbours in a head of the token at position m."""
    pairs = [(row[i], row[i + 1], m * base ** (-i / len(row))) for i in range(0, len(row), 2)]
    return [c for a, b, t in pairs for c in (a * cos(t) - b * sin(t), a * sin(t) + b * cos(t))]


def layer(x: Rows, seen: Any, p: Any, at: str, given: Any) -> Rows:
    """Compute a layer for one sample; seen(h, i, j) is False where the mask hides key j from query i of head h."""
    q, k, v = (times(norm(x, p[f"{at}norm_1.gamma"]), p[f"{at}w_{name}"]) for name in "qkv")
    d_k, base, attended = len(q[0]) // given["num_heads"], given.get("base", 10000), [list[float]() for _ in x]
    for h in range(given["num_heads"]):
        own, shared = (slice(g * d_k, g * d_k + d_k) for g in (h, h * given["num_kv_heads"] // given["num_heads"]))
        keys = [turn(row[shared], j, base) for j, row in enumerate(k)]
        for i, row in enumerate(q):
            scores = times([turn(row[own], i, base)], [[*channel] for channel in zip(*keys, strict=True)])[0]
            shown = [s / sqrt(d_k) if j <= i and seen(h, i, j) else -1e300 for j, s in enumerate(scores)]
            powers = [exp(score - max(shown)) for score in shown]
            attended[i] += times([[power / sum(powers) for power in powers]], [row[shared] for row in v])[0]
    x = plus(x, times(attended, p[f"{at}w_o"]))
    gate, up = (times(norm(x, p[f"{at}norm_2.gamma"]), p[f"{at}feed_forward.w_{name}"]) for name in ("gate", "up"))
    hidden = [[g / (1 + exp(-g)) * u for g, u in zip(*rows, strict=True)] for rows in zip(gate, up, strict=True)]
    return plus(x, times(hidden, p[f"{at}feed_forward.w_down"]))


def find(place: Any, shape: list[int]) -> int:
    """Return where the element at a place lies in the list of all; an axis of length 1 serves every index."""
    where = 0
    for index, size in zip(place[len(place) - len(shape) :], shape, strict=True):
        where = where * size + (index if size > 1 else 0)
    return where


def compute(component: str, inputs: Any, p: Any, given: Any) -> list[float]:
    """Return the numbers of the first output of a call."""
    x, mask = inputs.get("x"), inputs.get("mask", {"shape": [], "values": [True]})
    rows = norm(split(x["values"], len(p["gamma"])), p["gamma"]) if component == "rms_norm" else []
    if component == "decoder_only_layer":
        for b, sample in enumerate(split(split(x["values"], x["shape"][2]), x["shape"][1])):
            rows += layer(sample, lambda *at, b=b: mask["values"][find((b, *at), mask["shape"])], p, "", given)
    for ids in split(inputs["ids"]["values"], inputs["ids"]["shape"][1]) if "ids" in inputs else []:
        decoded = [p["table"][i] for i in ids]
        for n in range(given["num_layers"]):
            decoded = layer(decoded, lambda *at, ids=ids: ids[at[2]] != given.get("pad_id"), p, f"layers.{n}.", given)
        rows += times(norm(decoded, p["norm.gamma"]), p["w_vocab"])
    return [number for row in rows for number in row]


for component in ("rms_norm", "decoder_only_layer", "decoder_only_model"):
    calls = json.loads(Path(sys.argv[1], f"{component}.json").read_text(encoding="utf-8"))
    options, judged, agreeing = calls["families"]["llama-3"], 0, 0
    for call in calls["cases"]:
        p = {n: split(a["values"], a["shape"][1]) if a["shape"][1:] else a["values"] for n, a in call["params"].items()}
        for expected in call["expect"]:
            fits = all(options[name] in admitted for name, admitted in expected["options"].items())
            if fits and "outputs" in expected and not NEWER & {*call, *call["attributes"]}:
                output = expected["outputs"][calls["first_output"]]
                actual = compute(component, call["inputs"], p, call["attributes"])
                actual = [actual[find(at, output["shape"])] for at in output["at"]] if "at" in output else actual
                errors = [abs(a - v) for a, v in zip(actual, output["values"], strict=True)]
                judged, agreeing = judged + 1, agreeing + (max(errors) <= output["tolerance"]["float64"])
    print(f"{component}: {agreeing} of {judged} cases agree")
