"""HTTP protocol of Parlay's servers, with limits on idle connections."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

REQUEST_S = 10.0
"""Seconds within which a connection must send the head of a request, from its start and from each answer."""
MAX_IDLE = 200
"""Idle connections at once; beyond that the one idle for longest is closed. Below the usual limit of 1024 open files.
"""
BACKLOG = 128
"""Listen backlog: below MAX_IDLE, so that no connection is closed before it was read."""

_waiting: WeakKeyDictionary[ServerState, dict[BoundedProtocol, None]] = WeakKeyDictionary()
"""Idle connections by server, the oldest first."""


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with limits: idle connections and incomplete requests are closed after a time, and few are
    kept."""

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
        if len(waiting) > MAX_IDLE:
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
