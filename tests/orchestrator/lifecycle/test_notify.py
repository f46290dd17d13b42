"""Notifications of a search: when one is due, sent once, with its status; a failure does not affect the search."""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from orchestrator.config.schema.notify import NotifyEvent, NotifySection, notify_problems, webhook_address
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.notify import event_message, last_progress_at, post, run_command
from orchestrator.search.lease import LeaseLost
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import BASELINE, FASTEST, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from tests.kit import MINIMAL, loaded, refusal, search_file
from tests.orchestrator.cli.simulated import OK, TABLE_SEARCH, write_simulated_search
from trials.files.folders import SearchFolder

TOKEN = "T0KEN-in-a-path"
TODAY = """{tensor_parallel: 2, pipeline_parallel: 2, micro_batch_size: 4, zero_stage: 1, sequence_parallel: true,
           attention_kernel: flash, precision: bf16, engine: nanotron, pipeline_schedule: 1f1b}"""
KEEP_STDIN = (sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@contextmanager
def receiver(status: int = 200, location: str | None = None) -> Iterator[tuple]:
    """A loopback server: its port, and the path and body of every POST received so far."""
    posts: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, self.headers["Content-Type"], body))
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location)
            self.end_headers()

        def log_message(self, *words) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    serving.start()
    try:
        yield server.server_port, posts
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def told(tmp_path) -> Path:
    """The file to which `telling` has the notifications written."""
    return tmp_path / "told"


def telling(told: Path, *rows: dict[str, str], base: str = TABLE_SEARCH, **section: Any) -> Path:
    """A search file whose notifications go to the file `told`."""
    section = {"command": [*KEEP_STDIN, str(told)], **section}
    return write_simulated_search(told.parent, *rows or (OK,), text=base + f"notify: {json.dumps(section)}\n")


def sent_to(told: Path) -> list[dict]:
    return [json.loads(line) for line in told.read_text().splitlines()]


class TestWhenASearchEnds:
    @pytest.mark.slow
    def test_command_and_webhook_get_its_status_once_whoever_resumes_it(self, parlay, told):
        with receiver() as (port, posts):
            private(told.parent / "hook", f"http://127.0.0.1:{port}/{TOKEN}\n")
            code, status, err = parlay("run", telling(told, OK, OK, webhook="hook"))
            assert code == 0, err
            ((where, kind, body),) = posts
            assert (where, kind) == (f"/{TOKEN}", "application/json")
            sent = json.loads(body)
            assert sent_to(told) == [sent]
            assert sent.pop("message").startswith(f"{status['search_id']} is completed; best: ")
            assert sent == {"schema": "parlay.notification/1", "event": "end", "status": status}
            assert parlay("resume")[:2] == (0, status)
            assert len(posts) == len(sent_to(told)) == 1

    @pytest.mark.slow
    def test_a_driver_that_died_before_the_word_leaves_it_to_the_next_and_one_that_died_in_it_does_not(
        self, parlay, told
    ):
        path = telling(told)
        with pytest.MonkeyPatch.context() as patch:  # as far as it came
            patch.setattr("orchestrator.lifecycle.observers.is_notification_due", lambda folder, spec, event: False)
            assert parlay("run", path)[0] == 0

        def lose(folder, lease, now):
            raise LeaseLost("taken over")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orchestrator.lifecycle.lock.HEARTBEAT_S", 0.0)
            patch.setattr("orchestrator.lifecycle.lock.renew_lease", lose)
            code, status, err = parlay("resume")
        assert (code, status["state"]) == (0, "completed")
        assert "no notification of the search's end was sent: taken over" in err
        assert not SearchFolder(told.parent / "runs" / status["search_id"]).notified.exists(), "the other one tells"

        def die(command, payload):
            raise SystemExit(9)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orchestrator.lifecycle.notify.run_command", die)
            with pytest.raises(SystemExit):
                parlay("resume")
        assert parlay("resume")[0] == 0
        assert not told.exists()

    @pytest.mark.slow
    @pytest.mark.security("secrets")
    def test_what_fails_there_is_said_without_the_address_and_changes_neither_exit_code_nor_answer(
        self, parlay, tmp_path, told
    ):
        hook = private(tmp_path / "hook", f"http://127.0.0.1:9/{TOKEN}\n")  # nobody listens there
        failing = ["sh", "-c", "echo no mail here; exit 3"]
        code, status, err = parlay("run", telling(told, webhook="hook", command=failing))
        assert (code, status["state"]) == (0, "completed")
        assert "notify.command sh: ended with status 3: no mail here" in err
        assert f"notify.webhook {hook}: cannot be reached: Connection refused" in err
        assert TOKEN not in err + json.dumps(status)
        files = [p for p in tmp_path.rglob("*") if p.is_file() and p != hook]
        assert SearchFolder(tmp_path / "runs" / status["search_id"]).notified / "end.json" in files
        assert [p for p in files if TOKEN.encode() in p.read_bytes()] == []


class TestWhileItRuns:
    @pytest.mark.slow
    def test_each_event_is_sent_once_to_both_and_the_end_last(self, parlay, told):
        base = TABLE_SEARCH.replace("finalists: 0", "finalists: 0, max_trials: 3") + f"baseline: {TODAY}\n"
        events = ["end", "budget", "stall", "speedup"]
        with receiver() as (port, posts):
            private(told.parent / "hook", f"http://127.0.0.1:{port}/{TOKEN}\n")
            how = {"events": events, "stall_after": "1s", "speedup": 1.5, "webhook": "hook"}
            code, status, err = parlay("run", telling(told, OK, {"step_time_s": "2"}, OK, base=base, **how))
            assert code == 0, (status, err)
            assert parlay("resume")[0] == 0
        sent = sent_to(told)
        assert sorted(each["event"] for each in sent) == sorted(events)
        assert (sent[-1]["event"], sent[-1]["status"]) == ("end", status)
        said = next(each["message"] for each in sent if each["event"] == "speedup")
        assert ": Running, 2 of 3 layouts. Fastest so far: 1.75x, not re-measured; t0002 (" in said
        posted = [json.loads(body) for _, _, body in posts]
        assert sorted(posted, key=lambda each: each["event"]) == sorted(sent, key=lambda each: each["event"])


class TestCommand:
    @pytest.mark.security("no_shell")
    def test_no_argument_is_given_to_a_shell(self, tmp_path):
        marker = tmp_path / "marker"
        words = ["python", "-c", "import sys; sys.exit(len(sys.argv))", f"$(touch {marker}); touch {marker}"]
        assert run_command([sys.executable, *words[1:]], b"{}") == "ended with status 2"
        assert not marker.exists()

    @pytest.mark.slow
    def test_one_that_hangs_is_killed_with_its_children(self, tmp_path):
        alive = tmp_path / "alive"
        os.mkfifo(alive)
        reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
        words = run_command(["sh", "-c", f"sleep 600 > {alive} & wait"], b"{}", limit_s=1.0)
        assert words == "was killed after 1 s"
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b"", "nobody holds the other end any more"
        os.close(reader)


class TestWebhook:
    def test_it_is_not_followed_elsewhere(self, tmp_path):
        secret = private(tmp_path / "secret", "a secret")
        for location in (f"file://{secret}", "http://127.0.0.1:9/other"):
            with receiver(status=302, location=location) as (port, posts):
                hook = private(tmp_path / "hook", f"http://127.0.0.1:{port}/")
                assert post(hook, b"{}") == "was answered with status 302"
                assert len(posts) == 1

    @pytest.mark.security("secrets")
    def test_a_certificate_that_is_refused_is_said_without_the_host(self, tmp_path, monkeypatch):
        def refuse(address, payload, limit_s):
            words = f"certificate is not valid for '{TOKEN}.example.org'"
            raise URLError(ssl.SSLCertVerificationError(1, words))

        monkeypatch.setattr("orchestrator.lifecycle.notify._send", refuse)
        hook = private(tmp_path / "hook", f"https://{TOKEN}.example.org/")
        assert post(hook, b"{}") == "cannot be reached: its certificate is not trusted"

    @pytest.mark.parametrize(
        "text", ["", "file:///etc/passwd", "https:///", "https://a b", "http://h:0/", "http://[x/"]
    )
    def test_what_is_no_web_address_is_refused_and_not_repeated(self, text, tmp_path):
        hook = private(tmp_path / "hook", text + TOKEN)
        with pytest.raises(InputError, match="has no http or https address") as refused:
            webhook_address(hook)
        assert TOKEN not in str(refused.value)


class TestSearchFile:
    @pytest.mark.bad_input(27)
    @pytest.mark.security("secrets")
    def test_an_address_in_the_file_is_refused_and_not_repeated(self, parlay, tmp_path):
        address = f"https://hooks.example.org/{TOKEN}"
        code, answer, err = parlay("plan", search_file(tmp_path, notify={"webhook": address}))
        assert (code, answer["error"]["code"], answer["error"]["key"]) == (2, "secret", "notify.webhook")
        assert "0600" in answer["error"]["fix"]
        assert TOKEN not in json.dumps(answer) + err

    @pytest.mark.bad_input(27)
    @pytest.mark.security("private_files")
    def test_a_file_that_others_may_read_is_refused(self, tmp_path):
        (tmp_path / "hook").write_text("https://example.org/x")
        (tmp_path / "hook").chmod(0o640)
        problem = refusal(tmp_path, notify={"webhook": "hook"})
        assert (problem.key, problem.value, problem.fix) == ("notify.webhook", str(tmp_path / "hook"), "chmod 600")

    @pytest.mark.security("private_files")
    def test_a_file_of_somebody_else_is_refused(self, tmp_path, monkeypatch):
        hook = private(tmp_path / "hook", "https://example.org/x")
        us = hook.stat().st_uid + 1
        monkeypatch.setattr("orchestrator.config.schema.notify.uid_as_seen_by", lambda folder: us)
        with pytest.raises(InputError, match="not a regular file that you own"):
            webhook_address(hook)

    def test_every_place_that_cannot_be_used_is_named(self, tmp_path):
        for path in (tmp_path, tmp_path / "absent"):
            problems = list(notify_problems(NotifySection(command=["no-such-program"], webhook=str(path))))
            wanted = [("notify.command", "no-such-program"), ("notify.webhook", str(path))]
            assert [(p.key, p.value) for p in problems] == wanted

    @pytest.mark.parametrize(
        ("given", "key", "said"),
        [
            ("events: [end, done], command: [sh]", "notify.events[1]", "stall"),
            ("events: [end, end], command: [sh]", "notify.events", "duplicate"),
            ("events: [stall]", "notify.events", "notified to nobody"),
            ("speedup: 1, command: [sh]", "notify.speedup", "more than 1"),
            ("stall_after: soon, command: [sh]", "notify.stall_after", "soon"),
        ],
    )
    def test_an_event_that_cannot_be_is_refused_by_name(self, given, key, said, tmp_path):
        problem = refusal(tmp_path, MINIMAL + f"notify: {{{given}}}\n")
        assert problem.key == key
        assert said in f"{problem.message} {problem.rule} {problem.fix}"

    def test_a_program_by_its_path_starts_from_the_files_folder(self, tmp_path):
        told = {"command": ["./tell.sh", "./it"]}
        (tmp_path / "tell.sh").write_text("#!/bin/sh\n")
        assert refusal(tmp_path, notify=told).key == "notify.command"
        (tmp_path / "tell.sh").chmod(0o700)
        spec = loaded(tmp_path, notify=told)
        assert spec.notify.command == [str(tmp_path / "tell.sh"), "./it"]
        assert SearchSpec.from_json(spec.to_json()) == spec


NOTIFY = NotifySection(stall_after="2h", speedup=1.4)
END, STALL, BUDGET, SPEEDUP = NotifyEvent


def measured(*layouts: tuple[Layout, float], **search: Any) -> SearchUnderTest:
    found = SearchUnderTest(spec(search=search))
    for layout, speed in layouts:
        found.measure(found.start(layout), speed)
    return found


class TestStall:
    def test_time_counts_from_the_last_end_of_a_trial_else_from_the_creation(self):
        search = SearchUnderTest(spec())
        assert last_progress_at(search.record) == search.record.created_at
        search.start(BASELINE)
        assert last_progress_at(search.record) == search.record.created_at, "a start is no end"
        search.measure("t0001", 1000.0)
        assert last_progress_at(search.record) == search.record.trials[0].last_attempt.ended_at

    @pytest.mark.parametrize(("hours", "is_due"), [(1.9, False), (2.0, True), (50.0, True)])
    def test_it_is_due_after_the_stated_time(self, hours, is_due):
        search = measured((BASELINE, 1000.0)).record
        message = event_message(STALL, search, NOTIFY, last_progress_at(search) + 3600 * hours)
        assert (message is not None) is is_due


@pytest.mark.parametrize(
    ("limits", "passed_s", "said"),
    [
        ({"max_trials": 3}, 60, None),
        ({"max_trials": 2}, 60, "layouts 2 of up to 2"),
        ({"max_trials": 2, "against": "other"}, 60, None),
        ({"max_trials": 30, "budget_node_hours": 0.7}, 60, None),
        ({"max_trials": 30, "budget_node_hours": 0.6}, 60, "node-hours 0.500 of 0.6"),
        ({"max_trials": 30, "max_wall_time": "2h"}, 5399, None),
        ({"max_trials": 30, "max_wall_time": "2h"}, 5400, "time 1:30:00 of 2:00:00"),
    ],
)
def test_three_quarters_of_the_first_limit_are_named(limits, passed_s, said):
    search = measured((BASELINE, 1000.0), (FASTEST, 1500.0), **limits).record
    message = event_message(BUDGET, search, NOTIFY, search.created_at + passed_s)
    assert message == (said and f"tiny-abcdef: three quarters of a limit are used: {said}")


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ((), None),
        ((1000.0,), None),
        ((1000.0, 1390.0), None),
        (
            (1000.0, 1500.0),
            "tiny-abcdef: Running, 2 layouts. Fastest so far: 1.50x, not re-measured; t0002 (tp2 pp2 dp2 mb1 1f1b)",
        ),
        ((1000.0, 900.0), None),
    ],
)
def test_the_factor_over_the_baseline_is_that_of_the_verdict(speeds, said):
    search = measured(*zip((BASELINE, FASTEST), speeds, strict=False)).record
    message = event_message(SPEEDUP, search, NOTIFY, START)
    assert (message or "").startswith(said or "")
    assert (message is None) is (said is None)


def test_after_the_end_the_end_alone_is_due():
    search = a_search()
    assert event_message(END, search.record, NOTIFY, START) is None
    search.end()
    later = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
    messages = {event: event_message(event, search.record, NOTIFY, later) for event in NotifyEvent}
    assert [event for event, message in messages.items() if message is not None] == [END]
    assert messages[END].startswith("tiny-abcdef is completed; best: t0003, ")
