"""The command line. Each command is imported when it is asked for, so that --help is instant."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import threading
import traceback
from typing import Any, Final

import click

from goldformer.conformance.commands import GROUPS, SUMMARIES
from goldformer.conformance.judging import running
from goldformer.conformance.judging.collector import sparing_collector
from goldformer.conformance.parent import STOPPED, fork_from_parent

_NO_ADAPTER: Final = (
    "Give the file of your functions, or a built-in name such as reference; "
    "`goldformer new my_adapter.py` writes a file to start from"
)
#: The commands that load and call somebody's code in their process.
_CALLING: Final = ("baseline", "check", "infer", "trace")
#: Modules that Python has on Linux and macOS only: processes, baselines and grading use them.
_POSIX: Final = ("fcntl", "resource")


class LazyGroup(click.Group):
    """The commands of goldformer, each in a module of its own name; what a command returns is the exit status.

    An adapter, a spec or a baseline that cannot be used ends every command with its message and status 2, whenever the
    file is read. So does a file that cannot be read or written.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line of this process, or the arguments given; a parent outlives somebody's code."""
        given = args or options.get("args") is not None
        if not given:
            _repair_streams()
        if given or not (sys.argv[1:] and sys.argv[1] in _CALLING and hasattr(os, "fork")):
            return super().main(*args, **options)
        fork_from_parent()
        try:
            return super().main(**options)
        except SystemExit as end:
            running.note_status(end.code if isinstance(end.code, int) else int(end.code is not None))
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click passes it
        """Return the names of all commands."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; None if no command has that name."""
        if cmd_name not in SUMMARIES:
            return None
        command = getattr(importlib.import_module(f"goldformer.conformance.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word; a word that is nearly one gets a guess."""
        if args and args[0] not in SUMMARIES and not args[0].startswith("-"):
            from goldformer.conformance.did_you_mean import describe_unknown  # only on the way to an error

            message = describe_unknown(args[:1], SUMMARIES, "no such command")
            assert message is not None, "the word is no command"
            ctx.fail(message)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands into the help without importing them, those that most people need first."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, SUMMARIES[name]) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and end with the status that it returns."""
        try:
            with sparing_collector():
                status = super().invoke(ctx)
        except click.MissingParameter as error:
            if error.param is None or error.param.name not in ("adapter", "adapters"):
                raise
            raise click.MissingParameter(_NO_ADAPTER, error.ctx, error.param) from None
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt as stop:
            # Nothing is imported: Ctrl-C may have stopped an import in its middle, and NumPy cannot be imported twice.
            with contextlib.suppress(OSError):
                click.secho(f"goldformer: stopped{running.describe_interrupted(stop)}", fg="red", err=True)
            status = STOPPED
        except BrokenPipeError:
            raise  # the reader is gone: click ends the command silently
        except OSError as error:
            from goldformer.conformance.commands._console import refuse_os_error

            raise refuse_os_error(error) from error
        except Exception as error:
            from goldformer.adapters import AdapterError
            from goldformer.conformance.baseline.model import BaselineError
            from goldformer.conformance.commands._console import CannotRun
            from goldformer.extras import PACKAGES, describe_missing, name_package
            from goldformer.spec import SpecError

            if isinstance(error, ModuleNotFoundError) and error.name in _POSIX:
                why = f"this needs {error.name}, a module of Python on Linux and macOS: on Windows, run it in WSL"
                raise CannotRun(why) from error
            if isinstance(error, ModuleNotFoundError) and (package := name_package(error.name or "")) in PACKAGES[""]:
                raise CannotRun(describe_missing([package])) from error
            if isinstance(error, AdapterError | BaselineError | SpecError):
                raise CannotRun(str(error)) from error
            traceback.print_exc()
            raise CannotRun("a fault in goldformer: please report it with the traceback above") from error
        if status == STOPPED:
            # Libraries make code of text by exec(). After a KeyboardInterrupt in it Python ends by SIGINT, also if it
            # was caught. The next exec() takes that back.
            exec("")
        ctx.exit(status)


def _repair_streams() -> None:
    """Let everything be printed: a letter that the terminal has no sign for as "?", and to nobody if it is closed."""
    sys.stdout, sys.stderr = (
        stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w") for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # no terminal is so narrow, and nothing would be printed


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="goldformer")
def main() -> None:
    """Is your Transformer right? Golden cases, a conformance suite, and what they rest on."""
    # A build server stops a job with SIGTERM: end the processes that were started, as Ctrl-C does.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


def _stop(*_: Any) -> None:
    """Stop as Ctrl-C does, and once: a second SIGTERM would interrupt the removal of what is left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
