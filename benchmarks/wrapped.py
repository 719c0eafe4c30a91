"""Changes of the last digits: PyTorch's transformations, batches, padding, layouts and threads: docs/wrapped.md.

Run with `make wrapped`, which takes hours, or with names of adapters and of wrappers to run again. Each runs as
`goldformer check NAME --wrap WRAPPER` does; torch.compile takes each component by itself, and is stopped after LIMIT
seconds. The word `settings` runs the properties with --bitwise. What was judged is kept in build/wrapped, and the page
is made of all that is there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from benchmarks.implementations import describe_environment
from goldformer.adapters import find_adapter
from goldformer.adapters.wrapping import WRAPPERS
from goldformer.spec import load_spec
from goldformer.spec.markdown import markdown_table
from goldformer.spec.tables import Setting

REPOSITORY: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = REPOSITORY / "build" / "wrapped"
PAGE: Final = REPOSITORY / "docs" / "wrapped.md"

NAMES: Final = ("reference", "torch-nn")

#: The implementations that run in other settings, and the settings that the run can choose for each.
IN_SETTINGS: Final[Mapping[str, tuple[Setting, ...]]] = {
    "reference": get_args(Setting),
    "torch-nn": get_args(Setting),
    "jax": ("batch size", "padding"),
    # It has threads of its own.
    "onnxruntime": ("batch size", "padding", "memory layout"),
}
SETTINGS: Final = "settings"

#: The seconds after which a run is stopped: torch.compile takes seconds for each form of a call.
LIMIT: Final = {"compile": 600, "export": 1200, "vmap": 600, "script": 300, SETTINGS: 900}

#: The most reasons that the page lists for what cannot be wrapped, and the most characters of one.
_MOST_REASONS: Final = 6
_LONGEST: Final = 200

#: A line of a file, as PyTorch and goldformer write it at the end of a message.
_PLACE: Final = re.compile(r""" *(File "[^"]*", line \d+.*| \([^()]*:\d+, [^()]*\))$""")

_HEAD: Final = """# Compiled, exported, mapped, and in every batch

## PyTorch's transformations

What PyTorch's transformations make of right code: `goldformer check NAME --wrap WRAPPER` judges each golden case with
the function itself and with the transformed one ([how](check.md#compiled-exported-mapped)). In float32 on a CPU:

- **equal**: both pass, with the same numbers bit for bit;
- **within**: both pass, with other digits;
- **wrong**: the function itself passes, and the transformed one does not;
- **not**: the transformation does not take the function, or this call of it.

`make wrapped` makes this page again. It gives torch.compile at most {limit:.0f} minutes for each component, as each
form of a call takes it seconds; where a line below says *stopped*, the numbers are those of the cases until then. This
one: {environment}.
"""

_SETTINGS_HEAD: Final = """## In every batch

What stays the same where only the setting differs: a sample by itself and in batches of 2, 4 and 8; with padding after
it; as transposed and strided views; on 1, 2 and 4 threads. **=** is bit for bit, in every call; a number is the largest
distance ÷ tolerance, and below 1 a property holds. A setting that a library does not have, or that this run cannot
choose, is –. Inputs are small ([how](check.md#in-every-batch)); in float32 on a CPU.
"""

Run = Mapping[str, Any]


def run(name: str, wrapper: str, components: Sequence[str]) -> dict[str, Any]:
    """Judge the wrapped functions of some components; what was judged when the time was over counts."""
    report = _check(name, wrapper, components[0], "--wrap", wrapper, "--component", ",".join(components))
    problem = str(report["problem"])
    kept = {
        "version": report["version"],
        "problem": (f"`{components[0]}`: " if wrapper == "compile" else "") + problem
        if problem.startswith("stopped")
        else "",
        "verdicts": [
            {key: verdict[key] for key in ("check", "component", "reason", "status", "message", "wrapped")}
            for verdict in report["verdicts"]
            if verdict["wrapped"] or verdict["reason"] == "not-wrapped" or verdict["status"] in ("failed", "errored")
        ],
    }
    _file(name, wrapper, components[0]).write_text(json.dumps(kept), encoding="utf-8")
    return kept


def run_in_settings(name: str) -> dict[str, Any]:
    """Judge the properties of an implementation that compare a call with itself in another setting."""
    comparing = [prop.id for prop in load_spec().properties.values() if prop.settings]
    report = _check(name, SETTINGS, "all", "--bitwise", "--property", ",".join(comparing))
    kept = {
        "version": report["version"],
        "invariances": [(v["component"], found) for v in report["verdicts"] for found in v["invariances"]],
        "failures": [
            (f"{verdict['check']} of {verdict['component']}", verdict["message"])
            for verdict in report["verdicts"]
            if verdict["status"] in ("failed", "errored") and verdict["reason"] != "bitwise"
        ],
    }
    _file(name, SETTINGS, "all").write_text(json.dumps(kept), encoding="utf-8")
    return kept


def _check(name: str, what: str, group: str, *options: str) -> dict[str, Any]:
    """Return the report of `goldformer check` in float32; when the time is over, that of what was judged."""
    target = _file(name, what, group)
    target.unlink(missing_ok=True)
    words = ["check", name, *options, "--dtype", "float32", "-q", "--json", str(target)]
    command = [sys.executable, "-W", "ignore", "-m", "goldformer", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as checking:
        try:
            checking.wait(LIMIT[what])
        except subprocess.TimeoutExpired:
            # It saves what was judged; a process in the background ignores Ctrl-C.
            checking.terminate()
            checking.wait()
    nothing = {"verdicts": [], "problem": "stopped before the first case", "version": ""}
    report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8")) if target.exists() else nothing
    return report


def _file(name: str, what: str, group: str) -> Path:
    return FOLDER / f"{name}-{what}-{group}.json"


def page(runs: Mapping[str, Mapping[str, Sequence[Run]]], settings: Mapping[str, Run]) -> str:
    """Render the page of some runs, by implementation and by transformation."""
    parts = [_HEAD.format(limit=LIMIT["compile"] / 60, environment=describe_environment())]
    for name, by_wrapper in runs.items():
        parts += _section(name, by_wrapper)
    parts += _describe_settings(settings)
    return "\n".join(parts)


def _section(name: str, runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    yield f"### {name}\n"
    judged = {wrapper: [v for run in found for v in run["verdicts"]] for wrapper, found in runs.items()}
    rows = []
    for component in load_spec().components:
        mine = [[v for v in verdicts if v["component"] == component] for verdicts in judged.values()]
        if any(mine):
            rows.append([f"`{component}`", *map(_format_cell, mine)])
    yield markdown_table(["component", *(WRAPPERS[wrapper] for wrapper in runs)], rows)
    for wrapper, verdicts in judged.items():
        stopped = [run["problem"] for run in runs[wrapper] if run["problem"]]
        if lines := [*_list_deviations(verdicts), *_list_reasons(verdicts), *stopped]:
            yield f"#### {name}: {WRAPPERS[wrapper]}\n"
            yield "\n".join(f"- {line}" for line in lines) + "\n"


def _describe_settings(settings: Mapping[str, Run]) -> Iterator[str]:
    """Yield what stays the same over batch sizes, padding, layouts and threads, by implementation and component."""
    yield _SETTINGS_HEAD
    for name, found in settings.items():
        rows = []
        for component in load_spec().components:
            mine = {
                setting: [i for c, i in found["invariances"] if c == component and i["setting"] == setting]
                for setting in get_args(Setting)
            }
            if any(mine[setting] for setting in IN_SETTINGS[name]):
                cells = [
                    _format_invariances(mine[setting] if setting in IN_SETTINGS[name] else ())
                    for setting in get_args(Setting)
                ]
                rows.append([f"`{component}`", *cells])
        yield f"### {name} {found['version']} in other settings\n"
        yield markdown_table(["component", *get_args(Setting)], rows)
        if found["failures"]:
            yield "\n".join(f"- **`{check}`**: {_quote(message)}" for check, message in found["failures"]) + "\n"


def _format_invariances(found: Sequence[Mapping[str, Any]]) -> str:
    """Return that results stay bit for bit, or the largest distance ÷ tolerance."""
    if not found:
        return "–"
    return "=" if all(i["bitwise"] for i in found) else f"{max(i['distance'] for i in found):.2g}"


def _format_cell(verdicts: Sequence[Run]) -> str:
    """Return how many cases are equal, within tolerance, wrong, and not wrapped."""
    if not verdicts:
        return "–"
    counts = Counter(v["wrapped"]["agreement"] if v["wrapped"] else v["reason"] for v in verdicts)
    named = {"equal": "equal", "both right": "within", "wrapped is wrong": "wrong", "not-wrapped": "not"}
    words = [(counts.pop(key), word) for key, word in named.items() if counts[key]]
    words += [(count, "wrong without it") for count in [counts.total()] if count]
    return ", ".join(f"**{count} {word}**" if word.startswith("wrong") else f"{count} {word}" for count, word in words)


def _list_deviations(verdicts: Sequence[Run]) -> Iterator[str]:
    for verdict in verdicts:
        if verdict["status"] in ("failed", "errored"):
            yield f"**`{verdict['check']}`**: {_quote(verdict['message'])}"
    distances = [v["wrapped"]["distance"] for v in verdicts if v["wrapped"] and v["wrapped"]["distance"]]
    if distances:
        yield f"Where both are right, they are at most {max(distances):.2g} of the tolerance apart."


def _list_reasons(verdicts: Sequence[Run]) -> Iterator[str]:
    reasons = Counter(_quote(v["message"]) for v in verdicts if v["reason"] == "not-wrapped")
    for message, count in reasons.most_common(_MOST_REASONS):
        yield f"{count} {message}"
    if more := reasons.total() - sum(count for _, count in reasons.most_common(_MOST_REASONS)):
        yield f"{more} not wrapped: for other reasons"


def _quote(message: str) -> str:
    """Return a message as Markdown shows it: cut, without places in files, and without markup."""
    plain = _PLACE.sub("", message).rstrip(": ").replace("|", "\\|").replace("*", "\\*")
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]} …"


def main() -> None:
    """Run the adapters, and write the page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    spec = load_spec()
    words = sys.argv[1:]
    for name in [word for word in words if word in NAMES] or NAMES:
        components = [*find_adapter(name, spec).functions]
        for wrapper in [word for word in words if word in WRAPPERS] or (() if SETTINGS in words else WRAPPERS):
            for group in [[component] for component in components] if wrapper == "compile" else [components]:
                found = run(name, wrapper, group)
                print(f"{name} {wrapper} {group[0]}: {len(found['verdicts'])} {found['problem']}", flush=True)
    if SETTINGS in words or not words:
        for name in [word for word in words if word in IN_SETTINGS] or IN_SETTINGS:
            print(f"{name} {SETTINGS}: {len(run_in_settings(name)['invariances'])}", flush=True)
    write()


def write() -> None:
    """Write the page of all stored runs."""
    runs = {
        name: {
            wrapper: [
                json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob(f"{name}-{wrapper}-*.json"))
            ]
            for wrapper in WRAPPERS
        }
        for name in NAMES
    }
    found = {name: _file(name, SETTINGS, "all") for name in IN_SETTINGS}
    settings = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in found.items() if file.exists()}
    PAGE.write_text(page(runs, settings), encoding="utf-8")


if __name__ == "__main__":
    main()
