"""Notifications of a search's end: sent once, with its status; a failure does not affect the search."""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import URLError

import pytest

from orchestrator.cli.main import run
from orchestrator.config.loader import load_search_file
from orchestrator.config.notify_target import notify_problems, webhook_address
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.notify import _create_record, claim_notification, post, run_command
from orchestrator.schema.notify import NotifySection
from orchestrator.search.lease import LeaseLost
from search_spaces.errors import InputError
from tests.orchestrator.cli.simulated import OK, TABLE_SEARCH, write_simulated_search
from trials.files.folders import SearchFolder

TOKEN = "T0KEN-in-a-path"
BASELINE = """{tensor_parallel: 2, pipeline_parallel: 2, micro_batch_size: 4, zero_stage: 1, sequence_parallel: true,
           attention_kernel: flash, precision: bf16, engine: nanotron, pipeline_schedule: 1f1b}"""
KEEP_STDIN = (sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@contextmanager
def receiver(status: int = 200, location: str | None = None, silent: threading.Event | None = None) -> Iterator[tuple]:
    """A loopback server: its port, and the path and body of every POST received so far. A silent one answers once
    `silent` is set."""
    posts: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, self.headers["Content-Type"], body))
            if silent is not None:
                silent.wait(30)
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
        if silent is not None:
            silent.set()
        server.shutdown()
        serving.join()
        server.server_close()


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def parlay(tmp_path, monkeypatch, capfd) -> Callable[..., tuple[int, dict, str]]:
    """Run one command in `tmp_path`; returns its exit code, JSON object and log."""
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def answered(*words: str) -> tuple[int, dict, str]:
        code = run([*words, "--json"])
        out, err = capfd.readouterr()
        return code, json.loads(out), err

    return answered


class TestWhenASearchEnds:
    @pytest.mark.slow
    def test_command_and_webhook_get_its_status_once_whoever_resumes_it(self, parlay, tmp_path):
        told = tmp_path / "told"
        with receiver() as (port, posts):
            private(tmp_path / "hook", f"http://127.0.0.1:{port}/{TOKEN}\n")
            notify = f"notify: {{webhook: hook, command: {json.dumps([*KEEP_STDIN, str(told)])}}}\n"
            path = write_simulated_search(tmp_path, OK, OK, text=TABLE_SEARCH + notify)
            code, status, err = parlay("run", str(path))
            assert code == 0, err
            ((where, kind, body),) = posts
            assert (where, kind) == (f"/{TOKEN}", "application/json")
            sent = json.loads(body)
            assert [json.loads(line) for line in told.read_text().splitlines()] == [sent]
            assert sent.pop("message").startswith(f"{status['search_id']} is completed; best: ")
            assert sent == {"schema": "parlay.notification/1", "event": "end", "status": status}
            assert parlay("resume")[:2] == (0, status)
            assert len(posts) == len(told.read_text().splitlines()) == 1

    @pytest.mark.slow
    def test_ctrl_c_while_the_report_is_waited_for_keeps_nobody_from_being_told(self, parlay, tmp_path, monkeypatch):
        def interrupt(worker, timeout_s):
            raise KeyboardInterrupt

        monkeypatch.setattr("dashboards.report.background.ReportWorker.finish", interrupt)
        told = tmp_path / "told"
        notify = f"notify: {{command: {json.dumps([*KEEP_STDIN, str(told)])}}}\n"
        code, status, err = parlay("run", str(write_simulated_search(tmp_path, OK, text=TABLE_SEARCH + notify)))
        assert (code, status["state"]) == (0, "completed"), err
        assert json.loads(told.read_text())["status"] == status

    @pytest.mark.slow
    def test_a_folder_that_fails_before_the_word_leaves_it_to_the_next(self, parlay, tmp_path):
        told = tmp_path / "told"
        notify = f"notify: {{command: {json.dumps([*KEEP_STDIN, str(told)])}}}\n"
        path = write_simulated_search(tmp_path, OK, text=TABLE_SEARCH + notify)

        def fail(search, spec, folder):
            raise OSError(116, "Stale file handle")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orchestrator.lifecycle.notify.search_summary", fail)
            code, status, err = parlay("run", str(path))
        assert (code, status["state"]) == (0, "completed")
        assert "no notification of the event end was sent" in err
        assert parlay("resume")[0] == 0
        assert json.loads(told.read_text())["status"] == status

    @pytest.mark.slow
    def test_a_driver_that_died_before_the_word_leaves_it_to_the_next_and_one_that_died_in_it_does_not(
        self, parlay, tmp_path
    ):
        told = tmp_path / "told"
        notify = f"notify: {{command: {json.dumps([*KEEP_STDIN, str(told)])}}}\n"
        path = write_simulated_search(tmp_path, OK, text=TABLE_SEARCH + notify)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "orchestrator.lifecycle.shutdown.is_notification_due", lambda folder, spec, event: False
            )  # as far as it came
            assert parlay("run", str(path))[0] == 0

        def lose(folder, lease, now):
            raise LeaseLost("taken over")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orchestrator.lifecycle.lock.HEARTBEAT_S", 0.0)
            patch.setattr("orchestrator.lifecycle.lock.renew_lease", lose)
            code, status, err = parlay("resume")
        assert (code, status["state"]) == (0, "completed")
        assert "no notification of the search's end was sent: taken over" in err
        assert not SearchFolder(tmp_path / "runs" / status["search_id"]).notified.exists(), "the other one tells"

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
        self, parlay, tmp_path
    ):
        hook = private(tmp_path / "hook", f"http://127.0.0.1:9/{TOKEN}\n")  # nobody listens there
        text = TABLE_SEARCH + "notify: {webhook: hook, command: [sh, -c, 'echo no mail here; exit 3']}\n"
        code, status, err = parlay("run", str(write_simulated_search(tmp_path, OK, text=text)))
        assert (code, status["state"]) == (0, "completed")
        assert "notify.command sh: ended with status 3: no mail here" in err
        assert f"notify.webhook {hook}: cannot be reached: Connection refused" in err
        assert TOKEN not in err + json.dumps(status)
        files = [p for p in tmp_path.rglob("*") if p.is_file() and p != hook]
        assert SearchFolder(tmp_path / "runs" / status["search_id"]).notified / "end.json" in files
        assert [p for p in files if TOKEN.encode() in p.read_bytes()] == []


class TestWhileItRuns:
    @pytest.mark.slow
    def test_each_event_is_sent_once_to_both_and_the_end_last(self, parlay, tmp_path):
        told = tmp_path / "told"
        with receiver() as (port, posts):
            private(tmp_path / "hook", f"http://127.0.0.1:{port}/{TOKEN}\n")
            text = TABLE_SEARCH.replace("finalists: 0", "finalists: 0, max_trials: 3")
            text += f"baseline: {BASELINE}\n"
            text += "notify: {events: [end, budget, stall, speedup], stall_after: 1s, speedup: 1.5, webhook: hook,\n"
            text += f"         command: {json.dumps([*KEEP_STDIN, str(told)])}}}\n"
            path = write_simulated_search(tmp_path, OK, {"step_time_s": "2"}, OK, text=text)
            code, status, err = parlay("run", str(path))
            assert code == 0, (status, err)
            assert parlay("resume")[0] == 0
        sent = [json.loads(line) for line in told.read_text().splitlines()]
        assert sorted(each["event"] for each in sent) == ["budget", "end", "speedup", "stall"]
        assert sent[-1]["event"] == "end"
        assert sent[-1]["status"] == status
        assert all(each["message"].startswith(f"{status['search_id']}") for each in sent)
        said = next(each["message"] for each in sent if each["event"] == "speedup")
        assert ": Running, 2 of 3 layouts. Fastest so far: 1.75x, not re-measured; t0002 (" in said
        posted = [json.loads(body) for _, _, body in posts]
        assert sorted(posted, key=lambda each: each["event"]) == sorted(sent, key=lambda each: each["event"])
        assert posted[-1] == sent[-1]

    @pytest.mark.slow
    def test_a_driver_that_died_in_it_and_the_next_one_send_it_once(self, parlay, tmp_path):
        told = tmp_path / "told"
        text = TABLE_SEARCH.replace("finalists: 0", "finalists: 0, max_trials: 3") + f"baseline: {BASELINE}\n"
        text += f"notify: {{events: [speedup, budget], command: {json.dumps([*KEEP_STDIN, str(told)])}}}\n"
        path = write_simulated_search(tmp_path, OK, {"step_time_s": "2"}, OK, text=text)

        def die(folder, spec, search, event, message):
            deliver = claim_notification(folder, spec, search, event, message)
            if event == "speedup":
                raise SystemExit(9)
            return deliver

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orchestrator.lifecycle.notifier.claim_notification", die)
            with pytest.raises(SystemExit):
                parlay("run", str(path))
        code, status, err = parlay("resume")
        assert (code, status["state"]) == (0, "completed"), err
        sent = [json.loads(line)["event"] for line in told.read_text().splitlines()]
        assert sent == ["budget"], "the speedup was claimed by the first"

    def test_an_event_is_claimed_by_one_process_alone(self, tmp_path):
        record = tmp_path / "notified" / "stall.json"
        assert _create_record(record)
        assert not _create_record(record)
        assert record.stat().st_mode & 0o777 == 0o600


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

    def test_one_that_is_not_there_is_said(self):
        assert "No such file" in run_command(["/nowhere/notify"], b"{}")

    def test_what_it_says_cannot_steer_the_terminal(self):
        assert run_command(["printf", "\\033[31mred\\n"], b"{}") is None
        assert (
            run_command(["sh", "-c", "printf '\\033[31mred\\n'; exit 1"], b"{}") == "ended with status 1: \\x1b[31mred"
        )

    def test_of_what_it_says_only_the_end_is_read(self):
        words = ["sh", "-c", "head -c 100000 /dev/zero; echo; echo the end; exit 1"]
        assert run_command(words, b"{}") == "ended with status 1: the end"


class TestWebhook:
    def test_it_is_not_followed_elsewhere(self, tmp_path):
        secret = private(tmp_path / "secret", "a secret")
        for location in (f"file://{secret}", "http://127.0.0.1:9/other"):
            with receiver(status=302, location=location) as (port, posts):
                hook = private(tmp_path / "hook", f"http://127.0.0.1:{port}/")
                assert post(hook, b"{}") == "was answered with status 302"
                assert len(posts) == 1

    @pytest.mark.slow
    def test_one_that_does_not_answer_is_left(self, tmp_path):
        with receiver(silent=threading.Event()) as (port, _):
            hook = private(tmp_path / "hook", f"http://127.0.0.1:{port}/{TOKEN}")
            assert post(hook, b"{}", limit_s=0.2) == "cannot be reached: no answer in time"

    @pytest.mark.security("secrets")
    def test_a_certificate_that_is_refused_is_said_without_the_host(self, tmp_path, monkeypatch):
        def refuse(address, payload, limit_s):
            words = f"certificate is not valid for '{TOKEN}.example.org'"
            raise URLError(ssl.SSLCertVerificationError(1, words))

        monkeypatch.setattr("orchestrator.lifecycle.notify._send", refuse)
        hook = private(tmp_path / "hook", f"https://{TOKEN}.example.org/")
        assert post(hook, b"{}") == "cannot be reached: its certificate is not trusted"

    def test_one_whose_file_has_gone_is_said(self, tmp_path):
        assert post(tmp_path / "hook", b"{}") == f"{tmp_path / 'hook'} cannot be read: No such file or directory"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "ftp://example.org/x",
            "file:///etc/passwd",
            "https:///",
            "https://a b",
            "http://h:0/",
            "http://[x/",
            "http://h:99999/",
            "x",
        ],
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
        text = TABLE_SEARCH + f"notify: {{webhook: 'https://hooks.example.org/{TOKEN}'}}\n"
        code, answer, err = parlay("plan", str(write_simulated_search(tmp_path, OK, text=text)))
        error = answer["error"]
        assert (code, error["code"], error["key"], error["line"]) == (2, "secret", "notify.webhook", 11)
        assert error["rule"]
        assert "0600" in error["fix"]
        assert TOKEN not in json.dumps(answer) + err

    @pytest.mark.bad_input(27)
    @pytest.mark.security("private_files")
    def test_a_file_that_others_may_read_is_refused(self, parlay, tmp_path):
        (tmp_path / "hook").write_text("https://example.org/x")
        (tmp_path / "hook").chmod(0o640)
        text = TABLE_SEARCH + "notify: {webhook: hook}\n"
        code, answer, _ = parlay("run", str(write_simulated_search(tmp_path, OK, text=text)))
        error = answer["error"]
        assert (code, error["key"], error["value"]) == (2, "notify.webhook", str(tmp_path / "hook"))
        assert "0640" in error["message"]
        assert error["fix"] == "chmod 600"
        assert not (tmp_path / "runs").exists()

    def test_a_file_system_that_calls_its_users_otherwise_than_the_kernel_is_asked_who_we_are(
        self, tmp_path, monkeypatch
    ):
        hook = private(tmp_path / "hook", "https://example.org/x")
        monkeypatch.setattr(os, "geteuid", lambda: hook.stat().st_uid + 1)
        assert webhook_address(hook) == "https://example.org/x"

    @pytest.mark.security("private_files")
    def test_a_file_of_somebody_else_is_refused(self, tmp_path, monkeypatch):
        hook = private(tmp_path / "hook", "https://example.org/x")
        us = hook.stat().st_uid + 1
        monkeypatch.setattr("orchestrator.config.notify_target.uid_as_seen_by", lambda folder: us)
        with pytest.raises(InputError, match="not a regular file that you own"):
            webhook_address(hook)

    def test_every_place_that_cannot_be_used_is_named(self, tmp_path):
        for path in (tmp_path, tmp_path / "absent"):
            problems = list(notify_problems(NotifySection(command=["no-such-program"], webhook=str(path))))
            assert [(p.key, p.value) for p in problems] == [
                ("notify.command", "no-such-program"),
                ("notify.webhook", str(path)),
            ]
            assert all(p.rule and p.fix for p in problems)

    @pytest.mark.parametrize(
        ("given", "key", "said"),
        [
            ("events: [end, done], command: [sh]", "notify.events[1]", "stall"),
            ("events: [end, end], command: [sh]", "notify.events", "duplicate"),
            ("events: [], command: [sh]", "notify.events", "empty list"),
            ("events: [stall]", "notify.events", "notified to nobody"),
            ("speedup: 1, command: [sh]", "notify.speedup", "more than 1"),
            ("stall_after: soon, command: [sh]", "notify.stall_after", "soon"),
        ],
    )
    def test_an_event_that_cannot_be_is_refused_by_name(self, given, key, said, tmp_path):
        with pytest.raises(InputError) as refused:
            load_search_file(write_simulated_search(tmp_path, OK, text=TABLE_SEARCH + f"notify: {{{given}}}\n"))
        (problem,) = refused.value.problems
        assert problem.key == key
        assert said in f"{problem.message} {problem.rule} {problem.fix}"

    def test_a_pipe_is_no_address_and_holds_up_nothing(self, tmp_path):
        os.mkfifo(tmp_path / "pipe", 0o600)
        with pytest.raises(InputError, match="not a regular file"):
            webhook_address(tmp_path / "pipe")

    def test_a_program_by_its_path_starts_from_the_files_folder(self, tmp_path):
        text = TABLE_SEARCH + "notify: {command: [./tell.sh, ./it]}\n"
        path = write_simulated_search(tmp_path, OK, text=text)
        (tmp_path / "tell.sh").write_text("#!/bin/sh\n")
        with pytest.raises(InputError, match=r"notify\.command: .*/tell\.sh is not an executable program"):
            load_search_file(path)
        (tmp_path / "tell.sh").chmod(0o700)
        spec = load_search_file(path)
        assert spec.notify.command == [str(tmp_path / "tell.sh"), "./it"]
        assert SearchSpec.from_json(spec.to_json()) == spec
