"""Fixtures of the fork server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trials.fork_server.servers import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose server was started."""
    node = Node(tmp_path)
    node.serve()
    yield node
    node.close()
