"""The tests' Postgres recovers from a crash with what was committed."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from tests.postgres import postgres


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_killed_server_starts_again_with_what_was_committed():
    with postgres() as server:
        engine = create_engine(server.url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE kept (number int)"))
            connection.execute(text("INSERT INTO kept VALUES (42)"))
        server.kill()
        assert not server.answers()
        with pytest.raises(OperationalError), engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        server.start()
        with engine.connect() as connection:
            assert connection.execute(text("SELECT number FROM kept")).scalar_one() == 42
        engine.dispose()
