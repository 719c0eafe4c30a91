"""goldformer infer: the adapter of a class or a function, found by names, shapes and golden values."""

from __future__ import annotations

import os
from pathlib import Path

import click

from goldformer.adapters.inference import Target, read_target
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, UNUSABLE, CannotRun, require_folders, say
from goldformer.conformance.inference import describe_fit, infer_adapter
from goldformer.spec import load_spec
from goldformer.spec.files import write_named_file


@click.command(epilog=options.list_statuses(ok="golden values fit", fails="they fit, except in some cases"))
@click.argument("what")
@click.option("--component", help="The component that it is, if names and shapes leave that open.")
@options.ACCEPT
@click.option("-o", "--out", type=options.FILE, help="Save the adapter as this file, in any folder.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def infer(*, what: str, component: str | None, accept: tuple[str, ...], out: Path | None, force: bool) -> int:
    """Infer the adapter of a class or a function.

    WHAT is my_model.py:MyAttention or package.module:MyAttention, an nn.Module class or a function. Names, shapes and
    golden values decide how it is called. `goldformer check` then judges the adapter by all cases.
    """
    target = read_target(what)
    detour = "" if out is None else _find_detour(out, target, force=force)
    spec = load_spec()
    found = infer_adapter(target, component, spec, accept=accept)
    text = found.write(detour)
    name = found.wiring.target.name
    say(f"{name}: {found.component}", "bold")
    declared = (f"{name}: {option}" for name, option in found.wiring.declared.items())
    for line in (found.wiring.call, *found.wiring.choices, *declared):
        say(f"  {line}")
    if found.session and found.session.cache:
        say(f"{name}: {found.session.component}\n  {found.session.cache.describe()}", "bold")
    say(describe_fit(found))
    if out is None:
        say(f"\n{text}")
    else:
        write_named_file(out, text)
        say(f"wrote {out}\nnow run: goldformer check {out}")
    if found.fits:
        return OK
    return FAILS if found.is_proven else UNUSABLE


def _find_detour(out: Path, target: Target, *, force: bool) -> str:
    """Return the folder of the class as seen from the adapter's, empty if it is the same.

    Raise CannotRun if no adapter can be saved there.
    """
    require_folders({"--out": out})
    if out.suffix != ".py":
        raise CannotRun(f"--out {out}: an adapter is a Python file, so its name ends in .py")
    if out.exists() and not force:
        raise CannotRun(f"--out {out} exists: give another name, or --force to overwrite it")
    if target.file is not None and target.file.resolve() == out.resolve():
        raise CannotRun(f"--out {out}: that is the file of the class, name another one")
    here = out.resolve().parent
    if target.folder is None or target.folder == here:
        return ""
    return Path(os.path.relpath(target.folder, here)).as_posix()
