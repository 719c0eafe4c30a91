"""goldformer serve: a Python adapter that speaks the protocol on standard input and output."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from goldformer.adapters import find_adapter
from goldformer.adapters.process.messages import Encoding
from goldformer.adapters.process.server import Server
from goldformer.adapters.process.server import serve as serve_requests
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import OK
from goldformer.conformance.selection import Numerics
from goldformer.spec import load_spec

#: Messages may have megabytes, and every read of a pipe may wait for another process.
_BUFFER: Final = 1 << 20


@click.command(epilog=options.list_statuses())
@options.ADAPTER
@click.option(
    "--encoding",
    type=click.Choice(["base64", "numbers"]),
    default="base64",
    show_default=True,
    help="How arrays are written; numbers can be read.",
)
@options.THREADS
def serve(*, adapter: str, encoding: Encoding, threads: int) -> int:
    """Answer for a Python adapter in the protocol.

    The messages of docs/protocol.md go over standard input and output, until the input ends.
    """
    # Output of the adapter must not mix with the messages, and it must not read them.
    requests, replies = os.fdopen(os.dup(0), "rb", _BUFFER), os.fdopen(os.dup(1), "wb", _BUFFER)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    spec = load_spec()
    found = find_adapter(adapter, spec)
    server = Server(found, spec, encoding)
    Numerics(threads=threads).apply(found.arrays)
    try:
        serve_requests(server, requests, replies)
    except BrokenPipeError:
        # The reader is gone; closing would try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), replies.fileno())
    except KeyboardInterrupt:
        pass
    return OK
