"""Implementations in other processes, in any language: the messages of the protocol, the client and the server.

docs/protocol.md specifies the protocol. `messages` describes its messages, and `wire` converts them, without input or
output. `child` starts and ends a process, `client` calls it, `patience` decides when to give it up, and `server`
answers for an adapter.
"""

from typing import Final

__all__ = ["TIMEOUT"]

#: The limit in seconds for a call and for the handshake.
TIMEOUT: Final = 60.0
