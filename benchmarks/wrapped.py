"""PyTorch code after torch.compile, torch.export, torch.vmap and torch.jit.script: docs/wrapped.md.

Run with `make wrapped`, which takes about an hour, or with names of adapters and of wrappers to run again. Each runs as
`goldformer check NAME --wrap WRAPPER` does; torch.compile takes each component by itself, and is stopped after LIMIT
seconds. What was judged until then is kept in build/wrapped, and the page is made of all that is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.implementations import describe_environment
from goldformer.adapters import find_adapter
from goldformer.adapters.wrapping import WRAPPERS
from goldformer.spec import load_spec
from goldformer.spec.readme import markdown_table

REPOSITORY: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = REPOSITORY / "build" / "wrapped"
PAGE: Final = REPOSITORY / "docs" / "wrapped.md"

NAMES: Final = ("reference", "torch-nn")

#: The seconds after which a run is stopped: torch.compile takes seconds for each form of a call.
LIMIT: Final = {"compile": 90, "export": 1200, "vmap": 600, "script": 300}

#: The most reasons that the page lists for what cannot be wrapped, and the most characters of one.
_MOST_REASONS: Final = 6
_LONGEST: Final = 200

_HEAD: Final = """# Compiled, exported, mapped

What PyTorch's transformations make of right code: `goldformer check NAME --wrap WRAPPER` judges each golden case with
the function itself and with the transformed one ([how](check.md#compiled-exported-mapped)). In float32 on a CPU:

- **equal**: both pass, with the same numbers bit for bit;
- **within**: both pass, with other digits;
- **wrong**: the function itself passes, and the transformed one does not;
- **not**: the transformation does not take the function, or this call of it.

`make wrapped` makes this page again. It gives torch.compile {limit} seconds for each component, and says where that was
not enough for all cases; the numbers are then those of the cases until then. This one: {environment}.
"""

Run = Mapping[str, Any]


def run(name: str, wrapper: str, components: Sequence[str]) -> dict[str, Any]:
    """Judge the wrapped functions of some components; what was judged when the time was over counts."""
    target = FOLDER / f"{name}-{wrapper}-{components[0]}.json"
    target.unlink(missing_ok=True)
    words = ["check", name, "--wrap", wrapper, "--component", ",".join(components), "--dtype", "float32", "-q"]
    command = [sys.executable, "-W", "ignore", "-m", "goldformer", *words, "--save-json", str(target)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as checking:
        try:
            checking.wait(LIMIT[wrapper])
        except subprocess.TimeoutExpired:
            # It saves what was judged; a process in the background ignores Ctrl-C.
            checking.terminate()
            checking.wait()
    report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {"verdicts": []}
    problem = str(report.get("problem", "stopped before the first case"))
    kept = {
        "version": report.get("adapter", {}).get("version", ""),
        "problem": f"`{components[0]}`: {problem}" if problem.startswith("stopped") else "",
        "verdicts": [
            {key: verdict[key] for key in ("check", "component", "reason", "status", "message", "wrapped")}
            for verdict in report["verdicts"]
            if verdict["wrapped"] or verdict["reason"] == "not-wrapped" or verdict["status"] in ("failed", "errored")
        ],
    }
    target.write_text(json.dumps(kept), encoding="utf-8")
    return kept


def page(runs: Mapping[str, Mapping[str, Sequence[Run]]]) -> str:
    """Render the page of some runs, by implementation and by transformation."""
    parts = [_HEAD.format(limit=LIMIT["compile"], environment=describe_environment())]
    for name, by_wrapper in runs.items():
        parts += _section(name, by_wrapper)
    return "\n".join(parts)


def _section(name: str, runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    yield f"## {name}\n"
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
            yield f"### {name}: {WRAPPERS[wrapper]}\n"
            yield "\n".join(f"- {line}" for line in lines) + "\n"


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
    """Return a message as Markdown shows it: cut, without the folders of this machine, and without markup."""
    plain = message.replace(f"{REPOSITORY}/", "").replace("src/goldformer/", "").replace("|", "\\|").replace("*", "\\*")
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]} …"


def main() -> None:
    """Run the adapters, and write the page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    spec = load_spec()
    for name in [word for word in sys.argv[1:] if word in NAMES] or NAMES:
        components = [*find_adapter(name, spec).functions]
        for wrapper in [word for word in sys.argv[1:] if word in WRAPPERS] or WRAPPERS:
            for group in [[component] for component in components] if wrapper == "compile" else [components]:
                found = run(name, wrapper, group)
                print(f"{name} {wrapper} {group[0]}: {len(found['verdicts'])} {found['problem']}", flush=True)
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
    PAGE.write_text(page(runs), encoding="utf-8")


if __name__ == "__main__":
    main()
