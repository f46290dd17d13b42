"""How servers of Parlay's on a port read requests: whoever connects and asks nothing keeps nobody else out."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

REQUEST_S = 10.0
"""Within which a connection has sent the head of a request, from its beginning and from each answer on."""
MOST_WAITING = 200
"""Connections that may wait for a request at once; of more, the one that has waited longest is closed. Below the 1024
files that a process may usually have open."""
BACKLOG = 128
"""Connections that are taken at once at most: fewer than may wait, so that none is closed before it was read."""

_waiting: WeakKeyDictionary[ServerState, dict[BoundedProtocol, None]] = WeakKeyDictionary()
"""By server, the connections that wait for a request, in the order of their waiting."""


class BoundedProtocol(H11Protocol):
    """uvicorn's own, with bounds that it does not have: idle connections and half requests end, and are not many."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self._until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._wait_no_more()
        self._until = self.loop.call_later(REQUEST_S, self._abort)
        waiting = self._others()
        waiting[self] = None
        if len(waiting) > MOST_WAITING:
            next(iter(waiting))._abort()

    def _wait_no_more(self) -> None:
        self._others().pop(self, None)
        if self._until is not None:
            self._until.cancel()
            self._until = None

    def _others(self) -> dict[BoundedProtocol, None]:
        return _waiting.setdefault(self.server_state, {})

    def _abort(self) -> None:
        self._wait_no_more()
        self.transport.abort()
