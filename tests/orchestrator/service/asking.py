"""The service in this process: real handlers over a real ledger, drivers as processes, and a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from orchestrator.lifecycle.logs import ListSink, sending_to
from orchestrator.service.api import make_app
from orchestrator.service.executors import Processes
from orchestrator.service.handlers import RequestHandlers
from orchestrator.service.middleware import AuthMiddleware
from orchestrator.service.state_dir import ServiceStateDir
from orchestrator.service.supervisor import DriverSupervisor
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from trials.ledger.location import ledger_url


@dataclass
class Served:
    app: AuthMiddleware
    client: TestClient
    supervisor: DriverSupervisor
    state_dir: ServiceStateDir
    folder: Path
    log: list[str] = field(default_factory=list)

    def body(self, **changes: Any) -> dict[str, Any]:
        """A search of three layouts, whose trials come from a table."""
        path = write_simulated_search(self.folder, OK, OUT_OF_MEMORY, OK)
        return {"yaml": path.read_text(), "directory": str(self.folder)} | changes

    def submitted(self, headers: Mapping[str, str] | None = None, **changes: Any) -> str:
        answer = self.client.post("/v1/searches", json=self.body(**changes), headers=headers)
        assert answer.status_code == 201, answer.text
        return answer.json()["search_id"]

    def ended(self, search_id: str) -> dict[str, Any]:
        """Status of the search, once it has no driver."""
        deadline = time.monotonic() + 120
        while search_id in self.supervisor.searches() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.client.get(f"/v1/searches/{search_id}").json()


@contextmanager
def served(
    home: Path,
    folder: Path,
    policy: AuthPolicy | None = None,
    max_in_flight: int | None = None,
    is_read_only: bool = False,
) -> Iterator[Served]:
    """A service over this home's ledger; searches are written into `folder`."""
    state_dir, sink = ServiceStateDir.of(home), ListSink()
    with state_dir.lock(), sending_to(sink):
        supervisor = DriverSupervisor(state_dir, Processes(), max_in_flight)
        handlers = RequestHandlers(
            supervisor, ledger_url(), {"executor": "process", "max_in_flight": max_in_flight, "slurm": {}}
        )
        app = make_app(handlers, policy or AuthPolicy(), is_read_only=is_read_only)
        thread = threading.Thread(target=copy_context().run, args=(supervisor.run,))
        thread.start()
        try:
            yield Served(
                app, TestClient(app, raise_server_exceptions=False), supervisor, state_dir, folder, sink.messages
            )
        finally:
            supervisor.stop()
            thread.join()
