"""Contract of every ledger, on SQLite and on a real Postgres."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.event import listen

from search_spaces.errors import InputError
from tests.trials.ledger.stories import SEARCH_ID, Story, measured_story, stories
from trials.ledger.commands import request_cancel
from trials.ledger.database import VERSION_TABLE, LedgerBehind
from trials.ledger.events import FencedError, SearchState
from trials.ledger.fold import fold
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter

any_number_of_ledgers = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)


ON_POSTGRES = pytest.param("postgres", marks=[pytest.mark.processes, pytest.mark.walks, pytest.mark.timeout(120)])


@pytest.fixture(params=["sqlite", ON_POSTGRES])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return emptied(request.getfixturevalue("postgres_url"))


def emptied(url: str) -> str:
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in ("command", "attempt", "trial", "search", VERSION_TABLE):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    engine.dispose()
    return url


@pytest.fixture
def writer(url) -> Iterator[LedgerWriter]:
    writer = LedgerWriter(url)
    yield writer
    writer.close()


@pytest.fixture
def reader(url) -> Iterator[LedgerReader]:
    reader = LedgerReader(url)
    yield reader
    reader.close()


def tell(writer: LedgerWriter, story: Story) -> Story:
    for step in story.steps:
        writer.apply(*step)
    return story


@pytest.mark.timeout(120)
class TestFolding:
    numbers = itertools.count()

    @pytest.mark.slow
    @any_number_of_ledgers
    @given(data=st.data())
    def test_the_rows_are_the_fold_of_the_events_whatever_came_twice_or_last_by_catching_up(self, writer, reader, data):
        story = data.draw(stories(f"drawn-{next(self.numbers):06d}"))
        seen = data.draw(st.integers(0, len(story.events)))
        for number, step in enumerate(story.steps[:seen], start=1):
            writer.apply(*step)
            for earlier in data.draw(st.lists(st.sampled_from(story.steps[:number]), max_size=2)):
                writer.apply(*earlier)
        assert writer.last_seq(story.search_id) == seen
        assert seen == 0 or reader.search(story.search_id) == fold(story.search_id, story.events[:seen])
        for _ in range(2):
            writer.catch_up(story.search, story.events)
            assert reader.search(story.search_id) == story.search

    @pytest.mark.slow
    def test_of_a_search_whose_driver_has_folded_it_nothing_is_read_however_many_trials_it_has(self, writer, reader):
        story, statements, by_trial = Story(), [], []
        listen(writer._engine, "before_cursor_execute", lambda *execution: statements.append(execution[2]))
        writer.apply(story.create(), story.search)
        for number in range(1, 31):
            statements.clear()
            for step in (story.propose, story.submit, story.launch, story.run, story.measure, story.end_trial):
                writer.apply(step(f"t{number:04d}"), story.search)
            by_trial.append(sorted(statements))
        assert all(told == by_trial[0] for told in by_trial)
        assert not [words for words in by_trial[0] if words.startswith("SELECT")]
        assert reader.search(SEARCH_ID) == story.search

    def test_searches_do_not_touch_each_other(self, writer, reader):
        first, second = measured_story("first-aaaaaa"), Story("second-aaaaaa")
        second.create()
        second.propose()
        tell(writer, second)
        tell(writer, first)
        assert reader.search("first-aaaaaa") == first.search
        assert reader.search("second-aaaaaa") == second.search


class TestReplacing:
    def test_rows_made_anew_are_the_search_and_keep_commands(self, url, writer, reader):
        story, other = tell(writer, measured_story()), tell(writer, measured_story("other-aaaaaa"))
        request_cancel(url, SEARCH_ID, at=1000)
        writer.replace(story.search, "/new/place")
        assert reader.search(SEARCH_ID) == replace(story.search, spec={"folder": "/new/place"})
        assert reader.search("other-aaaaaa") == other.search
        assert [c.at for c in reader.pending_commands(SEARCH_ID)] == [1000]

    def test_a_search_that_goes_on_elsewhere_stays_recorded_there(self, writer, reader):
        story = Story()
        story.create(folder="/old")
        tell(writer, story)
        writer.set_folder(SEARCH_ID, f"/new/{SEARCH_ID}")
        writer.apply(story.propose(), story.search)
        writer.apply(story.set_state(SearchState.RUNNING), story.search)
        assert reader.searches()[0].folder == f"/new/{SEARCH_ID}"


class TestRefusals:
    def test_a_gap_is_refused_and_changes_nothing(self, writer, reader):
        story = measured_story()
        with pytest.raises(LedgerBehind, match="1 was expected"):
            writer.apply(*story.steps[1])
        assert writer.last_seq(SEARCH_ID) == 0
        for step in story.steps[:3]:
            writer.apply(*step)
        with pytest.raises(LedgerBehind, match="4 was expected"):
            writer.apply(*story.steps[4])
        assert reader.search(SEARCH_ID) == fold(SEARCH_ID, story.events[:3])

    def test_an_old_driver_is_fenced_off(self, writer):
        old, new = Story(), Story()
        for story in (old, new):
            story.create()
        tell(writer, old)
        new.fencing = 2
        writer.apply(new.take_over(), new.search)
        late = replace(old.propose("t0002"), seq=3)
        with pytest.raises(FencedError):
            writer.apply(late, replace(old.search, last_seq=3))
        with pytest.raises(FencedError):
            writer.catch_up(replace(old.search, last_seq=3), [late])


class TestReading:
    def test_a_ledger_that_does_not_exist_is_empty_until_something_is_written(self, reader, url):
        assert reader.searches() == []
        assert reader.pending_commands(SEARCH_ID) == []
        with pytest.raises(InputError, match="the ledger is empty") as caught:
            reader.search(SEARCH_ID)
        assert caught.value.problems[0].code == "unknown_id"
        fix = str(caught.value.problems[0].fix)
        assert all(words in fix for words in ("by its folder", "PARLAY_HOME", "--ledger", "parlay ledger rebuild"))
        writer = LedgerWriter(url)
        story = tell(writer, measured_story())
        writer.close()
        assert reader.search(SEARCH_ID) == story.search

    def test_searches_are_listed_newest_first(self, writer, reader):
        for number, search_id in enumerate(("old-aaaaaa", "one-aaaaaa", "two-aaaaaa", "six-aaaaaa")):
            story = Story(search_id)
            story.create(folder=f"/scratch/{search_id}")
            writer.apply(story.events[0], replace(story.search, created_at=story.search.created_at + number))
        newest = [(found.search_id, found.folder) for found in reader.searches()]
        expected = [(name, f"/scratch/{name}") for name in ("six-aaaaaa", "two-aaaaaa", "one-aaaaaa", "old-aaaaaa")]
        assert newest == expected
        assert reader.newest(2) == [(search_id, {"folder": folder}) for search_id, folder in expected[:2]]
        assert len(reader.newest(100)) == 4

    def test_a_summary_says_how_far_a_search_is(self, writer, reader):
        story = tell(writer, measured_story())
        writer.apply(story.best(None), story.search)
        (summary,) = reader.searches()
        assert (summary.state, summary.end_reason) == (SearchState.COMPLETED, story.search.end_reason)
        assert (summary.best_trial, summary.num_trials) == (None, 1)
        assert (summary.created_at, summary.ended_at) == (story.search.created_at, story.search.ended_at)

    def test_an_id_may_be_shortened_while_it_is_unique(self, writer, reader):
        for search_id in ("gpt-aaaaaa", "gpt-abbbbb", "gpt-a", "llama_x-cccccc"):
            tell(writer, measured_story(search_id))
        for short, found in (("lla", "llama_x-cccccc"), ("gpt-ab", "gpt-abbbbb"), ("gpt-a", "gpt-a")):
            assert reader.resolve(short) == found
        for prefix, code in (("gpt", "ambiguous_id"), ("", "ambiguous_id"), ("%", "unknown_id")):
            with pytest.raises(InputError, match=r"gpt-aaaaaa.*gpt-abbbbb|gpt-abbbbb.*gpt-aaaaaa") as caught:
                reader.resolve(prefix)
            assert caught.value.problems[0].code == code


class TestCommands:
    def test_a_command_is_for_one_search_and_stays_until_its_consequences_are_recorded(self, url, writer, reader):
        for search_id in (SEARCH_ID, "other-aaaaaa"):
            tell(writer, measured_story(search_id))
            request_cancel(url, search_id, at=1000.5)
        (command,) = reader.pending_commands(SEARCH_ID)
        assert command.at == 1000.5
        assert reader.pending_commands(SEARCH_ID) == [command]
        request_cancel(url, SEARCH_ID, at=1001)
        writer.settle_commands(SEARCH_ID, command.id, at=1002)
        assert [c.at for c in reader.pending_commands(SEARCH_ID)] == [1001]
        assert [c.at for c in reader.pending_commands("other-aaaaaa")] == [1000.5]

    def test_an_unknown_search_cannot_be_cancelled(self, url, writer):
        with pytest.raises(InputError, match="no search 'nobody'") as caught:
            request_cancel(url, "nobody", at=1000)
        assert caught.value.problems[0].code == "unknown_id"
