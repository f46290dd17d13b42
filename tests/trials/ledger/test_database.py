"""The ledger's database: its mode, its schema, and contention for its lock."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from search_spaces.errors import InputError
from tests.contracts.test_ledger import emptied
from tests.trials.ledger.stories import SEARCH_ID, Story, measured_story, written
from trials.files import sqlite_file
from trials.ledger import database
from trials.ledger.commands import request_cancel
from trials.ledger.database import (
    VERSION_TABLE,
    LedgerBehind,
    LedgerDamaged,
    LedgerFull,
    LedgerUnavailable,
    put_aside_damaged,
    retry_while_busy,
)
from trials.ledger.events import Event, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.tables import SCHEMA
from trials.ledger.writer import LedgerWriter


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def url(path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def story(url) -> Story:
    story = measured_story()
    writer = LedgerWriter(url)
    writer.catch_up(story.search, story.events)
    writer.close()
    return story


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.mark.security("private_files")
def test_only_its_owner_may_read_a_ledger_whatever_the_umask(path, url):
    old = os.umask(0)
    try:
        LedgerWriter(url).apply(*measured_story().steps[0])
    finally:
        os.umask(old)
    modes = {p.name: p.stat().st_mode & 0o777 for p in path.parent.glob("ledger.db*")}
    assert modes == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm"), 0o600)


OPENERS = pytest.mark.parametrize("open_it", [LedgerWriter, lambda url: LedgerReader(url).searches()])


def altered(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def in_folder(url: str, place: Path, search_id: str, has_journal: bool = True) -> Story:
    """A search of the ledger that lies in a folder of this place, by its journal or only by its rows."""
    story = measured_story(search_id, folder=str(place / search_id))
    LedgerWriter(url).catch_up(story.search, story.events)
    if has_journal:
        (place / search_id).mkdir()
        written(place / search_id / "journal.jsonl", story.events)
    return story


@OPENERS
@pytest.mark.fault(32)
def test_a_ledger_of_another_schema_is_put_aside_and_rebuilt_from_journals_and_rows(
    path, url, tmp_path, open_it, caplog
):
    kept = in_folder(url, tmp_path, "kept-aaaaaa")
    gone = in_folder(url, tmp_path, "gone-aaaaaa", has_journal=False)
    numbers = [10001, 10000, 9999, 2]  # not in the order of their names
    trials = [replace(gone.search.trials[0], trial=f"t{number:04d}", attempts=()) for number in numbers]
    writer = LedgerWriter(url)
    writer.replace(replace(gone.search, trials=tuple(trials)), str(tmp_path / "gone-aaaaaa"))
    writer.close()
    in_folder(url, tmp_path, "lost-aaaaaa", has_journal=False)
    request_cancel(url, "kept-aaaaaa", at=1000)
    request_cancel(url, "gone-aaaaaa", at=1001)
    altered(
        path,
        "UPDATE attempt SET excerpt = 'of others' WHERE search_id = 'kept-aaaaaa'",
        "UPDATE search SET state = 'asleep' WHERE search_id = 'lost-aaaaaa'",
        "ALTER TABLE attempt DROP COLUMN billed_hours",
        f"UPDATE {VERSION_TABLE} SET version_num = '2'",
    )
    before = dump(path)
    open_it(url)
    [aside] = path.parent.glob("ledger.db.schema-2-*")
    assert dump(aside) == before
    assert aside.stat().st_mode & 0o777 == 0o600
    reader = LedgerReader(url)
    assert reader.search("kept-aaaaaa") == kept.search
    found = reader.search("gone-aaaaaa").trials
    assert [trial.trial for trial in found] == [f"t{number:04d}" for number in sorted(numbers)]
    assert {trial.layout for trial in found} == {gone.search.trials[0].layout}
    assert {one.search_id for one in reader.searches()} == {"kept-aaaaaa", "gone-aaaaaa"}
    assert [command.at for name in ("kept", "gone") for command in reader.pending_commands(f"{name}-aaaaaa")] == [
        *(1000, 1001)
    ]
    [said] = [record.message for record in caplog.records]
    assert f"schema 2, this Parlay reads schema {SCHEMA}: it is kept as {aside}" in said
    assert "1 search from their journals, 1 from rows alone" in said
    assert "1 without a folder or rows that can be read stay behind: lost-aaaaaa" in said


def test_others_use_a_ledger_of_another_schema_while_its_journals_are_read_and_nothing_is_lost(
    path, url, tmp_path, monkeypatch
):
    story, folder = Story("kept-aaaaaa"), tmp_path / "kept-aaaaaa"
    story.create(folder=str(folder))
    folder.mkdir()
    journal = written(folder / "journal.jsonl", story.events)
    driver = LedgerWriter(url)  # of the version that made it
    driver.catch_up(story.search, story.events)
    altered(path, f"UPDATE {VERSION_TABLE} SET version_num = '2'")
    read = Journal.read

    def read_before_the_last(read_journal: Journal) -> list[Event]:
        events = read(read_journal)
        if len(story.events) == 1:
            altered(path, "INSERT INTO command (search_id, at) VALUES ('kept-aaaaaa', '1970')")
            journal.append(story.set_state(SearchState.RUNNING))
            driver.catch_up(story.search, story.events)
        return events

    monkeypatch.setattr(Journal, "read", read_before_the_last)
    LedgerWriter(url).close()
    driver.close()
    assert LedgerReader(url).search("kept-aaaaaa").state is SearchState.RUNNING
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT search_id, at FROM command").fetchall() == [("kept-aaaaaa", "1970")]


@pytest.mark.processes
@pytest.mark.walks
@pytest.mark.fault(32)
def test_a_postgres_of_another_schema_is_rebuilt_by_the_command_alone(postgres_url, tmp_path):
    url = emptied(postgres_url)
    kept = in_folder(url, tmp_path, "kept-aaaaaa")
    request_cancel(url, "kept-aaaaaa", at=1000)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '2'"))
    engine.dispose()
    for open_it in (LedgerWriter, lambda url: LedgerReader(url).searches()):
        with pytest.raises(InputError, match=f"schema 2, this Parlay reads schema {SCHEMA}") as caught:
            open_it(url)
        assert "parlay ledger rebuild" in str(caught.value.problems[0].fix)
    LedgerWriter(url, may_rebuild=True).close()
    reader = LedgerReader(url)
    assert reader.search("kept-aaaaaa") == kept.search
    assert [command.at for command in reader.pending_commands("kept-aaaaaa")] == [1000]


@OPENERS
def test_a_database_with_a_table_of_our_names_and_no_schema_is_refused_and_stays_as_it_is(path, url, open_it):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE trial (verdict TEXT)")
    before = path.read_bytes()
    with pytest.raises(InputError, match="has a table trial, but no table with the schema's version"):
        open_it(url)
    assert path.read_bytes() == before


def overwritten(path: Path, start: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(start)
        stream.write(os.urandom(path.stat().st_size - 2 * 4096))


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 4096])
@pytest.mark.fault(30)
def test_a_damaged_ledger_is_said_so_put_aside_and_made_anew(path, url, story, start):
    overwritten(path, start)
    with pytest.raises(LedgerDamaged, match=r"the ledger is damaged: .*(malformed|not a database)") as caught:
        LedgerReader(url).search(SEARCH_ID)
    assert "parlay ledger rebuild" in caught.value.fix
    aside = put_aside_damaged(url)
    assert {p.name.removesuffix("-wal").removesuffix("-shm") for p in path.parent.iterdir()} == {aside.name}
    assert aside.name.startswith("ledger.db.damaged-2")
    writer = LedgerWriter(url)
    writer.catch_up(story.search, story.events)
    assert LedgerReader(url).search(SEARCH_ID) == story.search
    assert put_aside_damaged(url) is None, "a sound one stays where it is"


def test_a_ledger_that_somebody_else_has_put_aside_is_left_alone(path, url, story):
    found = sqlite_file.identity(path)
    path.rename(path.with_name("theirs"))
    LedgerWriter(url).close()
    assert sqlite_file.put_aside(path, found) is None
    assert sqlite_file.damage(path) is None


@pytest.mark.slow
def test_who_holds_the_folders_lock_for_ever_holds_nobody_up_for_ever(path, url, story, monkeypatch):
    """Every user who can read a folder can lock it, and /tmp is readable by all."""
    monkeypatch.setattr(sqlite_file, "LOCK_PATIENCE_S", 0.1)
    overwritten(path, 0)
    holder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(LedgerUnavailable, match="locked by another process"):
            put_aside_damaged(url)
    finally:
        os.close(holder)
    assert put_aside_damaged(url) is not None


def test_a_writer_and_a_reader_go_on_in_the_file_that_lies_at_the_ledgers_path_by_now(path, url, story):
    with closing(LedgerWriter(url)) as writer, closing(LedgerReader(url)) as reader:
        assert (writer.last_seq(SEARCH_ID), len(reader.searches())) == (len(story.events), 1)
        sqlite_file.put_aside(path, sqlite_file.identity(path))
        with pytest.raises(LedgerUnavailable, match="unable to open database file"):
            writer.last_seq(SEARCH_ID)
        LedgerWriter(url).close()
        assert (writer.last_seq(SEARCH_ID), reader.searches()) == (0, [])
        with pytest.raises(LedgerBehind, match="where 1 was expected"):
            writer.apply(*story.steps[-1])
        writer.catch_up(story.search, story.events)
        assert reader.search(SEARCH_ID) == story.search


@pytest.mark.slow
@pytest.mark.parametrize(
    "nonsense",
    [
        *("search SET spec = '{'", "search SET spec = '[]'", "search SET state = 'asleep'"),
        *("trial SET layout = '[1]'", "attempt SET outcome = '[]'"),
    ],
)
def test_rows_that_say_nonsense_are_damage_and_can_be_replaced(path, url, story, nonsense):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {nonsense}")
        connection.commit()
    asks = [lambda reader: reader.search(SEARCH_ID), LedgerReader.searches]
    for ask in asks if nonsense.startswith("search") else asks[:1]:
        with pytest.raises(LedgerDamaged, match="a row has values that no search writes"):
            ask(LedgerReader(url))
    LedgerWriter(url).replace(story.search, "/somewhere")
    assert LedgerReader(url).search(SEARCH_ID).trials == story.search.trials


def test_reading_makes_no_file_but_a_link_or_a_folder_that_leads_nowhere_is_no_empty_ledger(path, url, tmp_path):
    assert LedgerReader(url).searches() == []
    assert not path.exists()
    path.touch()
    assert LedgerReader(url).searches() == [], "it is still being made"
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(LedgerUnavailable, match="unable to open database file"):
        LedgerReader(url).searches()
    with pytest.raises(InputError, match=r"cannot be written at .*nowhere"):
        LedgerWriter(f"sqlite:///{tmp_path}/nowhere/ledger.db")


@pytest.mark.slow
@pytest.mark.fault(29)
def test_a_locked_ledger_is_waited_for_and_one_that_stays_locked_is_unavailable_and_no_write_is_lost(
    path, url, monkeypatch
):
    story, writer = measured_story(), LedgerWriter(url)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.execute("ROLLBACK")

    monkeypatch.setattr(database.time, "sleep", wait)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writer.apply(*story.steps[0])
        assert len(waits) == 3
        assert len(set(waits)) > 1, "all contenders would come back at the same moment"
        clock = iter(range(0, 10_000, 20))
        monkeypatch.setattr(database.time, "monotonic", lambda: float(next(clock)))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="locked"):
            writer.apply(*story.steps[1])
    assert writer.last_seq(SEARCH_ID) == 1


POSTGRES_FAILS = 'connection failed: connection to server at "127.0.0.1", port 50693 failed: '


def refusing(words: str, monkeypatch, times: int = 1) -> Callable[[], str]:
    """A transaction that a database refuses so many times; who waits for it does so without sleep."""
    monkeypatch.setattr(database.time, "sleep", lambda seconds: None if times < 9 else pytest.fail("waited"))
    answers = iter([OperationalError("BEGIN", {}, Exception(words))] * times)

    def transaction() -> str:
        if (refusal := next(answers, None)) is not None:
            raise refusal
        return "done"

    return transaction


@pytest.mark.parametrize(
    "words",
    [
        "Connection refused",
        *(f"FATAL:  the database system is {state}" for state in ("starting up", "shutting down", "in recovery mode")),
        "FATAL:  the database system is not yet accepting connections",
        "server closed the connection unexpectedly",
    ],
)
def test_a_database_that_is_coming_back_is_waited_for(monkeypatch, words):
    assert retry_while_busy(refusing(POSTGRES_FAILS + words, monkeypatch)) == "done"


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (f'{POSTGRES_FAILS}FATAL:  role "ada" does not exist', LedgerUnavailable, "does not exist"),
        ("attempt to write a readonly database", LedgerUnavailable, "readonly"),
        ("database or disk is full", LedgerFull, "has no room"),
        ("could not extend file: No space left on device", LedgerFull, "has no room"),
        ("Disk quota exceeded", LedgerFull, "has no room"),
    ],
)
def test_a_database_that_refuses_for_good_or_has_no_room_is_not_waited_for(monkeypatch, words, error, said):
    with pytest.raises(error, match=said):
        retry_while_busy(refusing(words, monkeypatch, times=9))


def test_a_database_driver_that_is_not_installed_is_named(monkeypatch):
    def missing(*args, **options):
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr(database, "create_engine", missing)
    with pytest.raises(InputError, match=r"psycopg is not installed[\s\S]*parlay\[postgres\]"):
        LedgerWriter("postgresql+psycopg://localhost/parlay")
