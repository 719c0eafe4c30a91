"""The readable half of a baseline, manifest.yaml: its schema, its writer and its reader."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import Field

from goldformer.adapters.untrusted_text import clip_text, join_lines
from goldformer.conformance.baseline.array_files import DTYPES, LARGE, StoredArray
from goldformer.conformance.baseline.model import (
    Baseline,
    BaselineError,
    BaselineRequest,
    Ended,
    Entry,
    Key,
    Line,
    Output,
    Recording,
    name_array,
)
from goldformer.spec import SpecError
from goldformer.spec.strict import StrictModel
from goldformer.spec.yamlfile import Dumper, YamlFile

NAME: Final = "manifest.yaml"

#: The format of the whole folder; another one is refused. In format 2 one file had the arrays of all components.
FORMAT: Final = 4

_HEAD: Final = (
    "# A baseline: what an implementation gave. goldformer baseline check ADAPTER and this folder say what moved.\n"
)
_TAG: Final = "tag:yaml.org,2002:"

AGAIN: Final = "record it again: goldformer baseline record ADAPTER --out"

#: The most characters of a format that is no format, and of a version, in a message.
_LONGEST: Final = 100

#: The largest number of elements of an array.
_MOST: Final = 2**63 - 1
#: The largest number of axes of a NumPy array.
_MOST_AXES: Final = 64
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: The name of a component, which is also that of its file: it must not lead out of the folder.
Component = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class ListedOutput(StrictModel):
    """An Output without its values; `sha256` is set if these are a sample."""

    dtype: str
    shape: Annotated[list[Annotated[int, Field(ge=0, le=_MOST)]], Field(max_length=_MOST_AXES)]
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    sha256: Digest | None = None
    recording: Annotated[int, Field(ge=0)] = 0


class ListedResult(StrictModel):
    """A Key with its Entry."""

    case: Line
    component: Component
    dtype: Line
    device: Line
    inputs: Line
    outputs: dict[Line, ListedOutput] = Field(default_factory=dict)
    ended: Ended | None = None

    @property
    def key(self) -> Key:
        """The call."""
        return Key(self.case, self.dtype, self.device)


class Manifest(StrictModel):
    """The whole file; `files` are the digests of the components' arrays, and `digest` covers all other fields."""

    format: int
    goldformer: Line
    spec: Digest
    digest: Digest
    request: BaselineRequest
    files: dict[Component, Digest]
    recordings: Annotated[list[Recording], Field(min_length=1)]
    results: list[ListedResult]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; BaselineError if it is missing, of another format, or wrong."""
    path = folder / NAME
    if not path.is_file():
        is_folder = "is no baseline" if folder.is_dir() else "there is no such folder"
        raise BaselineError(f"{folder}: {is_folder}: {NAME} is missing; {AGAIN} {folder}")
    try:
        file = YamlFile.read(path)
        if not isinstance(file.data, Mapping) or "format" not in file.data:
            raise BaselineError(f"{path}: format: is missing, so this is no baseline's manifest; {AGAIN} {folder}")
        if file.data["format"] != FORMAT:
            said = (str(file.data.get(name, "unknown")) for name in ("format", "goldformer"))
            found, wrote = (join_lines(clip_text(text, _LONGEST)) for text in said)
            raise BaselineError(
                f"{path}: format: is {found}, and this goldformer reads {FORMAT}; "
                f"use the goldformer that wrote it ({wrote}), or check out the code "
                f"that it was recorded from and {AGAIN} {folder}"
            )
        manifest = file.parse(Manifest)
        _check(manifest, file)
    except SpecError as error:
        raise BaselineError(f"{error}\n{folder}: restore the file, or {AGAIN} {folder}") from error
    return manifest


def digest_manifest(manifest: Manifest) -> str:
    """Return the SHA-256 of all fields but the digest itself; the digests of the files are among them."""
    fields = manifest.model_dump(mode="json", exclude={"digest"})
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _check(manifest: Manifest, file: YamlFile) -> None:
    """Raise SpecError if fields contradict one another."""
    problems = []
    seen: set[Key] = set()
    for i, result in enumerate(manifest.results):
        where: tuple[str | int, ...] = ("results", i)
        if result.key in seen:
            problems.append(file.problem(where, f"{' '.join(result.key)} is listed twice"))
        seen.add(result.key)
        if bool(result.outputs) == (result.ended is not None):
            problems.append(file.problem(where, "has either outputs or ended"))
        for name, output in result.outputs.items():
            if output.dtype not in DTYPES:
                known = ", ".join(DTYPES)
                problems.append(file.problem((*where, "outputs", name, "dtype"), f"{output.dtype} is none of {known}"))
            count, most = math.prod(output.shape), LARGE if output.sha256 is None else _MOST
            if count > most:
                said = f"{count} numbers are more than {most}" + ", and there is no sha256" * (output.sha256 is None)
                problems.append(file.problem((*where, "outputs", name, "shape"), said))
        refers = [output.recording for output in result.outputs.values()]
        refers += [result.ended.recording] if result.ended else []
        if any(recording >= len(manifest.recordings) for recording in refers):
            count = len(manifest.recordings)
            problems.append(file.problem(where, f"refers to a recording that is none of the {count} listed"))
    components = {result.component for result in manifest.results if result.outputs}
    for name in sorted(components ^ manifest.files.keys()):
        why = f"{name} has outputs and no file" if name in components else f"no result has an output of {name}"
        problems.append(file.problem(("files",), why))
    if problems:
        raise SpecError(problems)


# ── writing ──


def write_manifest(baseline: Baseline, files: Mapping[str, str]) -> str:
    """Return the file, the same for the same baseline; `files` are the digests of the components' files."""
    unsigned = Manifest(
        format=FORMAT, goldformer=baseline.goldformer, spec=baseline.spec, digest="0" * 64,
        request=baseline.request, files=dict(files), recordings=list(baseline.recordings),
        results=[_make_result(key, entry) for key, entry in baseline.entries.items()],
    )  # fmt: skip
    fields = unsigned.model_dump(mode="json", exclude_defaults=True) | {"digest": digest_manifest(unsigned)}
    for result in fields["results"]:
        if "ended" in result:
            result["ended"] = _Line(result["ended"])
        for name, output in result.get("outputs", {}).items():
            result["outputs"][name] = _Line(output)
    # The width keeps each text on one line, as messages quote lines of the file.
    text: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
    return _HEAD + text


class _Line(dict[str, Any]):
    """A mapping that stands on one line."""


class _Dumper(Dumper):
    """Writes each output on one line."""


_Dumper.add_representer(_Line, lambda dumper, line: dumper.represent_mapping(f"{_TAG}map", line, flow_style=True))


def _make_result(key: Key, entry: Entry) -> ListedResult:
    outputs = {
        name: ListedOutput(
            dtype=output.stored.dtype, shape=list(output.stored.shape), tolerance=output.tolerance,
            sha256=output.stored.digest, recording=output.recording,
        )
        for name, output in entry.outputs.items()
    }  # fmt: skip
    return ListedResult(
        case=key.case, component=entry.component, dtype=key.dtype, device=key.device, inputs=entry.inputs,
        outputs=outputs, ended=entry.ended,
    )  # fmt: skip


# ── reading ──


def make_baseline(manifest: Manifest, values: Mapping[str, StoredArray]) -> Baseline:
    """Return the baseline of a manifest; `values` are its arrays by their names."""
    entries = {}
    for result in manifest.results:
        outputs = {
            name: Output(values[name_array(result.key, name)], output.tolerance, output.recording)
            for name, output in result.outputs.items()
        }
        entries[result.key] = Entry(result.component, result.inputs, outputs, result.ended)
    return Baseline(manifest.goldformer, manifest.spec, manifest.request, tuple(manifest.recordings), entries)
