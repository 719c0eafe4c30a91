"""Implementations outside this process, in any language: the protocol's messages, the client and the server.

docs/protocol.md specifies the protocol. `arrays`, `schema` and `wire` hold its messages and do no input or
output; `child` starts and ends a process, `client` speaks to it, and `server` answers for an adapter.
"""

from typing import Final

#: Seconds that a call, or the handshake, may take.
TIMEOUT: Final = 60.0
