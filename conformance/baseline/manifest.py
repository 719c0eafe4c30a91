"""The readable half of a baseline, manifest.yaml: its schema, and how it is written and read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import Field

from goldformer.conformance.baseline.arrays import DTYPES, LARGE
from goldformer.conformance.baseline.model import (
    Baseline,
    BaselineError,
    Ended,
    Entry,
    Key,
    Output,
    Recording,
    Request,
    array_name,
)
from goldformer.spec import SpecError
from goldformer.spec.oracle.write import number
from goldformer.spec.strict import StrictModel
from goldformer.spec.yamlfile import YamlFile

NAME: Final = "manifest.yaml"

#: Of the folder as a whole. A file of another version is refused. Format 1 had a digest of the arrays only.
FORMAT: Final = 2

AGAIN: Final = "record it again: goldformer baseline record ADAPTER --out"

#: Numbers that an array can have at all.
_MOST: Final = 2**63 - 1
#: Axes that an array can have in NumPy.
_MOST_AXES: Final = 64
#: What a check makes as it was recorded: a manifest must not ask for endless calls or for more threads than any machine
#: has.
MOST_DRAWN: Final = 1000
MOST_THREADS: Final = 1024

_DIGEST: Final = r"^[0-9a-f]{64}$"


class RequestModel(StrictModel):
    """A Request."""

    dtypes: Annotated[list[str], Field(min_length=1)]
    devices: Annotated[list[str], Field(min_length=1)]
    components: list[str]
    drawn: Annotated[int, Field(ge=0, le=MOST_DRAWN)]
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    tf32: bool


class RecordingModel(StrictModel):
    """A Recording."""

    given: str
    name: str
    version: str
    arrays: str
    conventions: dict[str, str]
    environment: dict[str, str]


class OutputModel(StrictModel):
    """An Output without its values; `sha256` is there when these are a sample."""

    dtype: str
    shape: Annotated[list[Annotated[int, Field(ge=0, le=_MOST)]], Field(max_length=_MOST_AXES)]
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    sha256: Annotated[str, Field(pattern=_DIGEST)] | None = None
    recording: Annotated[int, Field(ge=0)] = 0


class EndedModel(StrictModel):
    """An Ended."""

    reason: str
    message: str
    recording: Annotated[int, Field(ge=0)] = 0


class ResultModel(StrictModel):
    """A Key with its Entry."""

    case: str
    component: str
    dtype: str
    device: str
    inputs: str
    outputs: dict[str, OutputModel] = Field(default_factory=dict)
    ended: EndedModel | None = None


class ManifestModel(StrictModel):
    """The whole file; `digest` is that of everything else in it and of what the arrays hold."""

    format: int
    goldformer: str
    spec: Annotated[str, Field(pattern=_DIGEST)]
    arrays: Annotated[str, Field(pattern=r"^arrays-[0-9a-f]{16}\.safetensors$")]
    digest: Annotated[str, Field(pattern=_DIGEST)]
    request: RequestModel
    recordings: Annotated[list[RecordingModel], Field(min_length=1)]
    results: list[ResultModel]


def read_manifest(folder: Path) -> ManifestModel:
    """The manifest of a folder; BaselineError where there is none, or another format, or something is amiss."""
    path = folder / NAME
    if not path.is_file():
        is_folder = "is no baseline" if folder.is_dir() else "there is no such folder"
        raise BaselineError(f"{folder}: {is_folder}: {NAME} is missing; {AGAIN} {folder}")
    try:
        file = YamlFile.read(path)
        if not isinstance(file.data, Mapping) or "format" not in file.data:
            raise BaselineError(f"{path}: format: is missing, so this is no baseline's manifest; {AGAIN} {folder}")
        if file.data["format"] != FORMAT:
            raise BaselineError(
                f"{path}: format: is {file.data['format']}, and this goldformer reads {FORMAT}; "
                f"use the goldformer that wrote it ({file.data.get('goldformer', 'unknown')}), or {AGAIN} {folder}"
            )
        manifest = file.parse(ManifestModel)
        _check(manifest, file)
    except SpecError as error:
        raise BaselineError(f"{error}\n{folder}: restore the file, or {AGAIN} {folder}") from error
    return manifest


def manifest_digest(manifest: ManifestModel, content: str) -> str:
    """Return the SHA-256 of all fields but the digest itself, and of `content`, the digest of the arrays."""
    fields = manifest.model_dump(mode="json", exclude={"digest"})
    return hashlib.sha256(json.dumps([fields, content], sort_keys=True).encode()).hexdigest()


def _check(manifest: ManifestModel, file: YamlFile) -> None:
    """What one field says of another; SpecError where they do not fit."""
    problems = []
    seen: set[Key] = set()
    for i, result in enumerate(manifest.results):
        key = Key(result.case, result.dtype, result.device)
        where: tuple[str | int, ...] = ("results", i)
        if key in seen:
            problems.append(file.problem(where, f"{' '.join(key)} is listed twice"))
        seen.add(key)
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
    if problems:
        raise SpecError(problems)


# ── writing ──


def manifest_text(baseline: Baseline, arrays: str, content: str) -> str:
    """Return the file, the same for the same baseline; `content` is the digest of the file `arrays`."""
    digest = manifest_digest(_model(baseline, arrays), content)
    return "\n".join(_lines(baseline, arrays, digest)) + "\n"


def _model(baseline: Baseline, arrays: str) -> ManifestModel:
    """Return what a reader will make of the file, but for the digest."""
    request = baseline.request
    return ManifestModel(
        format=FORMAT,
        goldformer=baseline.goldformer,
        spec=baseline.spec,
        arrays=arrays,
        digest="0" * 64,
        request=RequestModel(
            dtypes=list(request.dtypes), devices=list(request.devices), components=list(request.components),
            drawn=request.drawn, threads=request.threads, tf32=request.tf32,
        ),
        recordings=[
            RecordingModel(
                given=recording.given, name=recording.name, version=recording.version, arrays=recording.arrays,
                conventions=dict(recording.conventions), environment=dict(recording.environment),
            )
            for recording in baseline.recordings
        ],
        results=[_result(key, entry) for key, entry in baseline.entries.items()],
    )  # fmt: skip


def _result(key: Key, entry: Entry) -> ResultModel:
    outputs = {
        name: OutputModel(
            dtype=output.kept.dtype, shape=list(output.kept.shape), tolerance=output.tolerance,
            sha256=output.kept.digest, recording=output.recording,
        )
        for name, output in entry.outputs.items()
    }  # fmt: skip
    ended = entry.ended
    return ResultModel(
        case=key.case, component=entry.component, dtype=key.dtype, device=key.device, inputs=entry.inputs,
        outputs=outputs,
        ended=EndedModel(reason=ended.reason, message=ended.message, recording=ended.recording) if ended else None,
    )  # fmt: skip


def _lines(baseline: Baseline, arrays: str, digest: str) -> Iterator[str]:
    request = baseline.request
    yield "# A baseline: what an implementation gave. goldformer baseline check ADAPTER and this folder say what moved."
    yield f"format: {FORMAT}"
    yield f"goldformer: {_text(baseline.goldformer)}"
    yield f"spec: {_text(baseline.spec)}"
    yield f"arrays: {arrays}"
    yield f"digest: {_text(digest)}"
    yield "request:"
    for name in ("dtypes", "devices", "components"):
        yield f"  {name}: {_list(map(_text, getattr(request, name)))}"
    yield f"  drawn: {request.drawn}"
    yield f"  threads: {request.threads}"
    yield f"  tf32: {str(request.tf32).lower()}"
    yield "recordings:"
    for recording in baseline.recordings:
        for lead, name in zip("-   ", ("given", "name", "version", "arrays"), strict=True):
            yield f"{lead} {name}: {_text(getattr(recording, name))}"
        for name in ("conventions", "environment"):
            yield from _mapping(f"  {name}", getattr(recording, name))
    yield "results:" if baseline.entries else "results: []"
    for key, entry in baseline.entries.items():
        yield f"- case: {_text(key.case)}"
        yield f"  component: {entry.component}"
        yield f"  dtype: {key.dtype}"
        yield f"  device: {_text(key.device)}"
        yield f"  inputs: {_text(entry.inputs)}"
        if entry.ended is not None:
            words = {"reason": _text(entry.ended.reason), "message": _text(entry.ended.message)}
            yield f"  ended: {_flow(words | _recording(entry.ended.recording))}"
            continue
        yield "  outputs:"
        for name, output in entry.outputs.items():
            yield f"    {name}: {_flow(_output(output))}"


def _output(output: Output) -> dict[str, str]:
    kept = output.kept
    words = {"dtype": kept.dtype, "shape": _list(map(str, kept.shape))}
    words |= {"tolerance": number(repr(output.tolerance))} if output.tolerance is not None else {}
    words |= {"sha256": _text(kept.digest)} if kept.digest is not None else {}
    return words | _recording(output.recording)


def _recording(index: int) -> dict[str, str]:
    return {"recording": str(index)} if index else {}


def _mapping(head: str, words: Mapping[str, str]) -> Iterator[str]:
    yield f"{head}:" if words else f"{head}: {{}}"
    indent = " " * (len(head) - len(head.lstrip()) + 2)
    yield from (f"{indent}{_text(name)}: {_text(value)}" for name, value in words.items())


def _flow(words: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in words.items()) + "}"


def _list(words: Iterable[str]) -> str:
    return f"[{', '.join(words)}]"


def _text(text: str) -> str:
    """A text in quotes, whatever it holds."""
    if text.isascii() and text.isprintable() and not set(text) & set('"\\'):
        return f'"{text}"'
    quoted: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=2**31)
    return quoted.rstrip("\n")


# ── reading ──


def from_manifest(manifest: ManifestModel, values: Mapping[str, Any]) -> Baseline:
    """The baseline of a manifest, with what its arrays hold by their names."""
    request = manifest.request
    return Baseline(
        manifest.goldformer,
        manifest.spec,
        Request(
            tuple(request.dtypes), tuple(request.devices), tuple(request.components), request.drawn, request.threads,
            request.tf32,
        ),
        tuple(Recording(**dict(recording)) for recording in manifest.recordings),
        {key: _entry(key, result, values) for result in manifest.results for key in [_key(result)]},
    )  # fmt: skip


def _key(result: ResultModel) -> Key:
    return Key(result.case, result.dtype, result.device)


def _entry(key: Key, result: ResultModel, values: Mapping[str, Any]) -> Entry:
    outputs = {
        name: Output(values[array_name(key, name)], output.tolerance, output.recording)
        for name, output in result.outputs.items()
    }
    ended = result.ended
    return Entry(
        result.component, result.inputs, outputs, Ended(ended.reason, ended.message, ended.recording) if ended else None
    )
