"""The command line, from what click knows of it."""

from __future__ import annotations

import click

from goldformer.conformance.cli import main
from goldformer.spec.markdown import escape
from goldformer_site.markdown import render_term, target

_HEAD = """\
(the-command-line)=
# The command line

The texts of `goldformer --help` and `goldformer COMMAND --help`. A command returns its
[exit status](../exit-status.md).

"""


def page() -> str:
    """Return the page of every command with its arguments and options."""
    context = click.Context(main, info_name="goldformer")
    parts = [_HEAD + "```text\n" + _usage(main, context) + "\n```\n"]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        within = click.Context(command, parent=context, info_name=name)
        paragraphs = [escape(paragraph) for paragraph in (command.help or "").split("\n\n")]
        options = [_option(p, within) for p in command.params if isinstance(p, click.Option)]
        parts += [
            f"{target('command', name)}## goldformer {name}\n",
            *(f"{paragraph}\n" for paragraph in paragraphs),
            f"```text\n{_usage(command, within)}\n```\n",
            *options,
        ]
    return "\n".join(parts)


def _usage(command: click.Command, context: click.Context) -> str:
    return " ".join((context.command_path, *command.collect_usage_pieces(context)))


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None, "every option of ours is shown"
    names, help_text = record
    return render_term(f"`{names}`", escape(help_text))
