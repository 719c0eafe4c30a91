"""The options that several commands take, and the exit statuses that their help lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from goldformer.conformance.choices import CHOICES


def list_statuses(
    *, ok: str = "done", fails: str = "", bad: str = "bad option or file, or a fault in goldformer", partial: str = ""
) -> str:
    """Return the exit statuses of a command for its help: what 0, 1, 2 and 3 mean."""
    meanings = {0: ok, 1: fails, 2: bad, 3: partial, 130: "stopped"}
    listed = "\n".join(f"  {status:<4} {meaning}" for status, meaning in meanings.items() if meaning)
    return f"\b\nExit status:\n{listed}"


#: Those of the commands that judge an implementation.
JUDGED: Final = list_statuses(
    ok="it conforms",
    fails="something fails",
    bad="bad adapter or option, nothing was checked, or a fault in goldformer and no failure",
    partial="partial: nothing is wrong, but too few cases were judged",
)

#: A file that is read or written, and a folder.
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)


def split_words(*default: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]]:
    """Return a callback that splits the values of a repeatable option at commas, and keeps each word once.

    Without any word it gives the default.
    """

    def split(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for text in values for word in text.split(",") if word)) or default

    return split


#: A decorator that puts an option on a command.
Option = Callable[[Callable[..., Any]], Callable[..., Any]]
Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete(list_words: Callable[[], Iterable[str]]) -> Completion:
    """Return a callback that completes the last of the words between commas; they are listed when a shell asks."""

    def complete_last(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, begun = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in list_words() if word.startswith(begun)]

    return complete_last


def complete_adapter(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a built-in adapter; the shell lists files itself."""
    from goldformer.adapters.find import BUILT_IN

    named = [CompletionItem(name) for name in BUILT_IN if name.startswith(incomplete)]
    return named or [CompletionItem(incomplete, type="file")]


def _complete_ids(table: str) -> Completion:
    """Return a callback that completes the ids of a table of the spec, such as its cases."""

    def list_ids() -> Iterable[str]:
        from goldformer.spec import load_spec

        ids: Iterable[str] = getattr(load_spec(), table)
        return ids

    return complete(list_ids)


def _list_dtypes() -> Iterable[str]:
    from goldformer.adapters import DTYPES as KNOWN

    return (*KNOWN, ALL)


ADAPTER: Final = click.argument("adapter", shell_complete=complete_adapter)
SPEC: Final = click.option(
    "--spec", "root", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Another spec folder."
)


def _select(names: str, table: str, help_text: str) -> Option:
    """Return a repeatable option, by one name or several, that takes ids of a table between commas."""
    return click.option(
        *names.split(),
        table,
        multiple=True,
        callback=split_words(),
        shell_complete=_complete_ids(table),
        help=help_text,
    )


COMPONENTS: Final = _select("-c --component", "components", "Only this component (repeatable, or a,b, or a pattern).")
CASES: Final = _select("-k --case", "cases", "Only this golden case, or those of a pattern: sdpa-*.")
PROPERTIES: Final = _select("--property", "properties", "Only this property.")
#: The word for every dtype that an adapter has.
ALL: Final = "all"
DTYPES: Final = click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    callback=split_words(),
    shell_complete=complete(_list_dtypes),
    help="float64, float32, float16, bfloat16, or all that the adapter has.  [default: float32, if the adapter has it]",
)
#: The devices that an option accepts, in words.
DEVICES_IN_WORDS: Final = "cpu, cuda, xpu, mps, one with its number as cuda:1, or pretend"
DEVICE: Final = click.option("--device", default="cpu", show_default=True, help=f"{DEVICES_IN_WORDS}.")
THREADS: Final = click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads on the CPU."
)
TF32: Final = click.option(
    "--tf32", is_flag=True, help="Allow TF32 in matrix products of float32, and judge by its rounding."
)
WRAP: Final = click.option(
    "--wrap",
    "wrapper",
    type=click.Choice(["compile", "export", "vmap", "script"]),
    help="Judge functions of PyTorch by golden cases after torch.compile, torch.export, torch.vmap over the batch, or "
    "torch.jit.script.",
)


def _read_pairs(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return the options of conventions that NAME=OPTION declare."""
    pairs = [text.partition("=") for text in split_words()(_context, parameter, values)]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise click.BadParameter(f"{wrong[0]!r} has no option: write NAME=OPTION, such as empty_row=zeros")
    return {name: option for name, _, option in pairs}


CONVENTIONS: Final = click.option(
    "--convention",
    "conventions",
    multiple=True,
    callback=_read_pairs,
    metavar="NAME=OPTION",
    help="A choice that the implementation makes, such as empty_row=zeros (repeatable, or a,b).",
)
FAMILY: Final = click.option(
    "--family",
    metavar="NAME",
    shell_complete=_complete_ids("families"),
    help="The model whose options the implementation has, such as llama-3; --convention changes one.",
)
ARRAYS: Final = click.option(
    "--arrays",
    type=click.Choice(["torch", "numpy", "jax"]),
    help="The array library of functions, if their code does not show it.",
)
BRIDGE: Final = click.option(
    "--bridge",
    metavar="NAME",
    help="The exercise that ADAPTER is a solution of, such as cs336; NAME:ADAPTER is the same.",
)
ACCEPT: Final = click.option(
    "--accept",
    type=click.Choice([*CHOICES]),
    multiple=True,
    help="Confirm a choice of a class that its code does not state.",
)
ALLOW_PARTIAL: Final = click.option(
    "--allow-partial",
    is_flag=True,
    help="Exit with 0, not 3, if nothing fails and too few cases of a component could be judged.",
)
BITWISE: Final = click.option(
    "--bitwise",
    is_flag=True,
    help="Fail outputs whose last bits change with batch size, padding, layout or number of threads.",
)
TIMEOUT: Final = click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60,
    show_default=True,
    help="Seconds for each call of an implementation that is a process.",
)
JOBS: Final = click.option(
    "-j", "--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: all cores]"
)
MARKDOWN: Final = click.option("--markdown", type=FILE, help="Save a summary in Markdown, as a build server shows it.")


def _silence(context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    """Keep all other text of this command from standard output if JSON goes there."""
    from goldformer.conformance.commands._console import DASH, silence

    if value == DASH:
        context.with_resource(silence())
    return value


JSON: Final = click.option(
    "--json",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    callback=_silence,
    metavar="FILE|-",
    help="Save it all as JSON; with -, print only that.",
)
