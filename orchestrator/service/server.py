"""The service: its socket, the supervisor's thread, uvicorn, and its log."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import uvicorn

from dashboards.access.auth import AuthPolicy
from dashboards.access.http_protocol import BACKLOG, BoundedProtocol
from orchestrator.lifecycle.logs import current_sink, format_line, sending_to
from orchestrator.lifecycle.signals import signals_handled_by
from orchestrator.service.api import make_app
from orchestrator.service.driver_process import ExecutorKind
from orchestrator.service.executors import make_executor
from orchestrator.service.handlers import RequestHandlers
from orchestrator.service.middleware import AuthMiddleware
from orchestrator.service.stall_watch import StallWatch
from orchestrator.service.state_dir import ServiceAnswer, ServiceStateDir, loopback_socket, unix_socket
from orchestrator.service.supervisor import DriverSupervisor
from slurm.environment import cluster_variables

_STREAMS_END_S = 5
"""Seconds that clients of event streams have to disconnect at shutdown."""
MAX_SERVICE_LOG_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ServiceOptions:
    """`port` of the loopback (0: a free one); None for a unix socket. `is_read_only`: pages change nothing."""

    port: int | None = None
    executor: ExecutorKind = ExecutorKind.PROCESS
    max_in_flight: int | None = None
    is_read_only: bool = False


def serve(
    state_dir: ServiceStateDir,
    ledger_url: str,
    options: ServiceOptions,
    on_ready: Callable[[ServiceAnswer], None],
) -> list[str]:
    """Serve until SIGINT or SIGTERM; return the ids of unfinished searches. For the main thread.

    `on_ready` gets the address once the service listens. Raises ServiceAlreadyRunning,
    ExternalError.
    """
    with (
        state_dir.lock(),
        closing(ServiceLogSink(state_dir.log, current_sink())) as sink,
        sending_to(sink),
        _listening(state_dir, options.port) as (listening, where, policy),
    ):
        executor = make_executor(options.executor)
        try:
            supervisor = DriverSupervisor(state_dir, executor, options.max_in_flight)
            about = {"executor": executor.kind, "max_in_flight": options.max_in_flight}
            handlers = RequestHandlers(supervisor, ledger_url, about | {"slurm": cluster_variables(os.environ)})
            with _watching_for_stalls(ledger_url):
                _run(
                    supervisor,
                    partial(make_app, handlers, policy, is_read_only=options.is_read_only),
                    listening,
                    lambda: on_ready(state_dir.write_about(**where, executor=executor.kind)),
                )
        finally:
            executor.close()
        return sorted(supervisor.searches())


def _run(
    supervisor: DriverSupervisor,
    app_of: Callable[[Callable[[], bool]], AuthMiddleware],
    listening: socket.socket,
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal; `app_of` returns the application, given a function that says whether the end has begun."""
    server: _Server | None = None
    app = app_of(lambda: server is None or server.should_exit)
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",  # a WebSocket upgrade would bypass the middleware
        backlog=BACKLOG,
        log_config=None,
        log_level="error",  # malformed requests are not logged
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_STREAMS_END_S,
    )
    server = _Server(config, on_ready)
    supervising = threading.Thread(target=copy_context().run, args=(supervisor.run,), name="supervisor", daemon=True)
    supervising.start()
    try:
        # uvicorn raises signals again when it has left; only its own handlers are to act.
        with signals_handled_by(lambda *_: None, signal.SIGINT, signal.SIGTERM):
            server.run(sockets=[listening])
    finally:
        supervisor.stop()
        supervising.join()


@contextmanager
def _watching_for_stalls(ledger_url: str) -> Iterator[None]:
    """Within this block a thread notifies stalls; a notification that hangs does not delay the end."""
    stopping = threading.Event()
    watching = StallWatch(ledger_url)
    threading.Thread(target=copy_context().run, args=(watching.run, stopping), name="stall-watch", daemon=True).start()
    try:
        yield
    finally:
        stopping.set()


class _Server(uvicorn.Server):
    """Calls `on_ready` once it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]):
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


@contextmanager
def _listening(
    state_dir: ServiceStateDir, port: int | None
) -> Iterator[tuple[socket.socket, dict[str, Any], AuthPolicy]]:
    if port is None:
        with unix_socket(state_dir) as (listening, path):
            yield listening, {"socket_path": path, "port": None}, AuthPolicy()
        return
    with loopback_socket(port) as (listening, bound):
        yield (
            listening,
            {"socket_path": None, "port": bound},
            AuthPolicy.on_port(state_dir.new_token(), bound, state_dir.page_key()),
        )


class ServiceLogSink(RotatingFileHandler):
    """Appends messages to a service's log, with time and level, and passes them on to `terminal`.

    At MAX_SERVICE_LOG_BYTES the file becomes `<name>.1`, which replaces an earlier one. A file that cannot be written
    is not an error.
    """

    terminator = ""

    def __init__(self, path: Path, terminal: logging.Handler | None):
        super().__init__(path, maxBytes=MAX_SERVICE_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.INFO:
            super().emit(record)
        if self._terminal is not None and record.levelno >= self._terminal.level:
            self._terminal.handle(record)

    def format(self, record: logging.LogRecord) -> str:
        return format_line(record)

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=partial(os.open, mode=0o600))

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the message."""
