"""goldformer serve: a Python adapter behind the protocol, on standard input and output."""

from __future__ import annotations

import os
import sys
from typing import Final

from goldformer.adapters import AdapterError, find_adapter
from goldformer.adapters.process.schema import Encoding
from goldformer.adapters.process.server import Server, serve
from goldformer.conformance.commands._console import OK, unusable
from goldformer.conformance.run import Numerics
from goldformer.spec import SpecError, load_spec

#: The messages may have megabytes, and every read of a pipe may wait for another process.
_BUFFER: Final = 1 << 20


def run(name: str, encoding: Encoding, threads: int) -> int:
    """Serve until the requests end; the exit status."""
    # What the adapter prints must not get between the messages, and what it reads must not be one.
    requests, replies = os.fdopen(os.dup(0), "rb", _BUFFER), os.fdopen(os.dup(1), "wb", _BUFFER)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        spec = load_spec()
        adapter = find_adapter(name, spec)
        server = Server(adapter, spec, encoding)
    except (AdapterError, SpecError) as error:
        return unusable(str(error))
    Numerics(threads=threads).apply(adapter.arrays)
    try:
        serve(server, requests, replies)
    except BrokenPipeError:
        # Nobody reads any longer; closing would try to write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), replies.fileno())
    except KeyboardInterrupt:
        pass
    return OK
