"""Pages of the service: access, content, and headers."""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from dashboards.access.browser_sessions import entry_address
from orchestrator.service.driver_session import DriverSession
from orchestrator.service.state_dir import ServiceStateDir
from orchestrator.service.supervisor import DriverState
from search_spaces.errors import ExternalError
from tests.orchestrator.service.asking import Served, served
from trials.files.folders import AttemptFolder, SearchFolder
from trials.ledger.location import ledger_url
from trials.ledger.reader import LedgerReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOKEN, PAGE_KEY = "s3cret-token", "s3cret-page-key"
HERE = {"host": "127.0.0.1:7000"}
PROGRAM = HERE | {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def service(own_home, tmp_path, monkeypatch):
    """A service on a port that drives no search."""
    monkeypatch.setattr("orchestrator.service.supervisor.DriverSupervisor.iterate", lambda self: None)
    with served(own_home, tmp_path, AuthPolicy.on_port(TOKEN, 7000, PAGE_KEY)) as found:
        yield found


def address() -> str:
    return entry_address(7000, TOKEN, time.time()).partition("7000")[2]


@pytest.fixture
def browser(service) -> TestClient:
    """A browser that has been let in."""
    found = TestClient(service.app, base_url="http://127.0.0.1:7000", raise_server_exceptions=False)
    assert found.get(address()).status_code == 200
    return found


@pytest.fixture
def search(service) -> str:
    return submitted(service)


def submitted(service: Served) -> str:
    answer = service.client.post("/v1/searches", json=service.body(), headers=PROGRAM)
    assert answer.status_code == 201, answer.text
    return answer.json()["search_id"]


@pytest.mark.security("service")
def test_an_address_lets_a_browser_in_once_and_goes_on_to_the_searches(service):
    there = address()
    first = service.client.get(there, headers=HERE)
    assert first.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/">' in first.text
    assert {"HttpOnly", "SameSite=Strict"} <= set(first.headers["set-cookie"].split("; "))
    service.client.cookies.clear()
    second = service.client.get(there, headers=HERE)
    assert second.status_code == 401
    assert "parlay serve --page" in second.text
    assert "set-cookie" not in second.headers


@pytest.mark.security("service", "secrets")
def test_neither_key_nor_cookie_nor_token_is_in_the_log_or_on_a_page(service, browser, search):
    there = address()
    seen = [browser.get(there), *(browser.get(path) for path in ("/", f"/searches/{search}/report"))]
    secrets = [TOKEN, PAGE_KEY, there.partition("key=")[2], browser.cookies["parlay-7000"]]
    for secret in secrets:
        assert not any(secret in answer.text for answer in seen)
        assert secret not in "".join(service.log)
    assert any(line.startswith("GET /enter 200") for line in service.log)


HEADERS = (
    ({}, 200),
    ({"host": "localhost:7000"}, 200),
    ({"sec-fetch-site": "same-origin"}, 200),
    ({"sec-fetch-site": "none"}, 200),
    ({"sec-fetch-site": "same-site"}, 401),
    ({"sec-fetch-site": "cross-site"}, 401),
    ({"host": "evil.example:7000"}, 403),
    ({"origin": "http://127.0.0.1:7001"}, 403),
    ({"origin": "null"}, 403),
    ({"cookie": ""}, 401),
    ({"cookie": "parlay-7000=x"}, 401),
)


@pytest.mark.security("service")
def test_a_cookie_opens_the_pages_to_the_services_own_browser(browser, search):
    for headers, status in HEADERS:
        for page in ("/", f"/searches/{search}", f"/searches/{search}/report"):
            assert browser.get(page, headers=headers).status_code == status, (page, headers)
        if status != 200:  # else it would be told until the search has ended
            assert browser.get(f"/searches/{search}/events", headers=headers).status_code == status, headers


@pytest.mark.security("service")
def test_a_cookie_opens_nothing_else_and_changes_nothing(browser, search):
    ways = [("GET", f"/{path}") for path in ("v1/searches", "v1/health", "openapi.json", "favicon.ico")]
    ways += [("POST", f"/{path}") for path in ("v1/searches", f"v1/searches/{search}/cancel", f"searches/{search}", "")]
    for method, path in ways:
        for headers in ({}, {"origin": "http://127.0.0.1:7000"}):
            assert browser.request(method, path, headers=headers).status_code == 401, (method, path)


BY_A_PERSON = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_persons_browser_never_gets_an_object(service, browser, search, method):
    cases = {
        "/v1/searches": (401, "For programs only"),
        "/favicon.ico": (404, "Not found"),
        "/other": (404, "Not found"),
    }
    for path, (status, title) in cases.items():
        answer = browser.request(method, path, headers=BY_A_PERSON)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
        assert method == "HEAD" or f'<h1 id="words-title">{title}</h1>' in answer.text
    for path in ("/openapi.json", "/docs"):
        answer = browser.request(method, path, headers=BY_A_PERSON, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/api"), path
    stranger = service.client.request(method, "/v1/searches", headers=HERE | BY_A_PERSON)
    assert (stranger.status_code, stranger.headers["content-type"]) == (401, "text/html; charset=utf-8")
    program = service.client.get("/other", headers=PROGRAM | BY_A_PERSON)
    assert program.headers["content-type"] == "text/html; charset=utf-8"


def test_a_bug_of_a_page_is_reported_as_a_page(browser, monkeypatch):
    monkeypatch.setattr("orchestrator.service.pages.searches_page", lambda *given: 1 / 0)
    answer = browser.get("/")
    assert (answer.status_code, "Internal error" in answer.text) == (500, True)
    assert "ZeroDivisionError" not in answer.text


@pytest.mark.security("service")
def test_what_may_not_be_read_is_reported_as_a_page_and_of_the_interface_as_an_object(service):
    answer = service.client.get("/", headers=HERE)
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "Open an address printed by parlay serve --page." in answer.text
    assert service.client.get("/v1/searches", headers=HERE).json()["error"]["code"] == "token"


@pytest.mark.security("service")
def test_every_page_is_kept_from_scripts_of_others_frames_and_caches(browser, search):
    pages = ("", "/report", "/logs", "/logs/t0001")
    for page in ("/", "/api", "/searches/none-abcdef", "/enter", *(f"/searches/{search}{each}" for each in pages)):
        headers = browser.get(page).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not {"unsafe-eval", "http:", "https:", "*"} & set(policy.replace("'", "").split())
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_description_names_the_token_and_each_call_has_the_answers_of_its_own(service, own_home, tmp_path):
    described = service.client.get("/openapi.json", headers=PROGRAM).json()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert described["security"] == [{"token": []}]
    answers = {
        f"{method} {path.removeprefix('/v1')}": " ".join(call["responses"])
        for path, methods in described["paths"].items()
        for method, call in methods.items()
    }
    assert answers["get /health"] == "200 401 403 500"
    assert answers["get /searches"] == "200 401 403 500 503"
    assert answers["post /searches"] == "201 400 401 403 413 415 500 503"
    assert answers["get /searches/{search}/best"] == "200 400 401 403 404 409 500 503"
    assert answers["post /searches/{search}/cancel"] == "202 400 401 403 404 409 413 415 500 503"
    with served(own_home / "other", tmp_path) as by_socket:
        assert by_socket.client.get("/openapi.json").json()["security"] == []


def test_the_page_of_the_interface_has_every_call_with_its_own_answers(service, browser):
    described = service.client.get("/openapi.json", headers=PROGRAM).json()
    text = browser.get("/api").text
    for path, methods in described["paths"].items():
        assert all(f'<span class="method">{method.upper()}</span> {path}</code>' in text for method in methods)
    assert "Authorization: Bearer TOKEN" in text
    assert TOKEN not in text


OF_A_PAGE = {"origin": "http://127.0.0.1:7000", "sec-fetch-site": "same-origin"}


class TestActions:
    """Requests of a page's buttons, and of others that are no page of this service."""

    @pytest.fixture
    def key(self, service, browser) -> str:
        browser.cookies.clear()
        page = browser.get(address()).text
        return re.search('data-action-key="([^"]+)"', page)[1]

    @pytest.mark.security("service")
    def test_a_page_of_this_service_cancels_and_resumes(self, service, browser, search, key):
        for action in ("resume", "cancel"):
            answer = browser.post(f"/searches/{search}/{action}", headers=OF_A_PAGE | {"parlay-action-key": key})
            assert (answer.status_code, answer.json()["search_id"]) == (202, search), answer.text
        with closing(LedgerReader(ledger_url())) as reader:
            assert len(reader.pending_commands(search)) == 1

    @pytest.mark.security("service")
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"parlay-action-key": None}, "action_key"),
            ({"parlay-action-key": "1999999999.x.00"}, "action_key"),
            ({"origin": None}, "origin"),
            ({"origin": "null"}, "origin"),
            ({"origin": "http://127.0.0.1:7001"}, "origin"),
            ({"origin": "http://localhost:7000"}, "origin"),
            ({"sec-fetch-site": "same-site"}, "origin"),
            ({"cookie": ""}, "origin"),
            ({"host": "evil.example:7000"}, "host"),
            ({"authorization": f"Bearer {TOKEN}", "parlay-action-key": None}, "action_key"),
        ],
    )
    def test_nobody_else_does(self, service, browser, search, key, changes, code):
        headers = OF_A_PAGE | {"parlay-action-key": key} | changes
        sent = {name: value for name, value in headers.items() if value is not None}
        answer = browser.post(f"/searches/{search}/cancel", headers=sent)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
        with closing(LedgerReader(ledger_url())) as reader:
            assert reader.pending_commands(search) == []

    @pytest.mark.security("service")
    def test_the_key_is_on_no_page_that_a_cookie_opens_and_bound_to_its_cookie(self, service, browser, search, key):
        for page in ("/", "/api", f"/searches/{search}", f"/searches/{search}/logs"):
            assert key not in browser.get(page).text
        assert not any(key in line for line in service.log)
        browser.cookies.clear()
        browser.get(address())
        answer = browser.post(f"/searches/{search}/cancel", headers=OF_A_PAGE | {"parlay-action-key": key})
        assert answer.json()["error"]["code"] == "action_key"

    @pytest.mark.security("service")
    def test_a_get_changes_nothing(self, browser, search, key):
        answer = browser.get(f"/searches/{search}/cancel", headers=OF_A_PAGE | {"parlay-action-key": key})
        assert answer.status_code in (404, 405)

    @pytest.mark.security("service")
    def test_pages_that_only_read_have_neither_key_nor_button(self, own_home, tmp_path, monkeypatch):
        monkeypatch.setattr("orchestrator.service.supervisor.DriverSupervisor.iterate", lambda self: None)
        policy = AuthPolicy.on_port(TOKEN, 7000, PAGE_KEY)
        with served(own_home, tmp_path, policy, is_read_only=True) as service:
            browser = TestClient(service.app, base_url="http://127.0.0.1:7000", raise_server_exceptions=False)
            assert 'data-action-key=""' in browser.get(address()).text
            search = submitted(service)
            assert "<dialog" not in browser.get(f"/searches/{search}").text
            signed_in = policy.sessions.enter(address().partition("key=")[2])
            headers = OF_A_PAGE | {"parlay-action-key": signed_in.action_key}
            headers["cookie"] = signed_in.set_cookie.partition(";")[0]
            browser.cookies.clear()
            assert browser.post(f"/searches/{search}/cancel", headers=headers).status_code in (404, 405)


class TestLogs:
    @pytest.fixture
    def folder(self, service, search) -> SearchFolder:
        return SearchFolder(service.folder / "runs" / search)

    @pytest.fixture
    def attempt(self, folder) -> AttemptFolder:
        """The first attempt of the search, whose driver has begun it."""
        DriverSession(folder.path, ledger_url()).run()
        found = folder.attempt("t0001", "a1")
        found.path.mkdir(parents=True, exist_ok=True)
        return found

    @pytest.mark.security("reports")
    def test_the_end_of_a_log_is_shown_as_text(self, browser, search, attempt):
        (attempt.path / "rank-00000.log").write_text("x" * 100_000 + "\n<script>alert(1)</script>\x1b[2J\x00\n")
        (attempt.path / "rank-00003.log").write_text("of rank 3\n")
        text = browser.get(f"/searches/{search}/logs/t0001").text
        assert "&lt;script&gt;alert(1)" in text
        assert "<script>alert" not in text
        assert not {"\x1b", "\x00"} & set(text)
        assert len(text) < 150_000
        assert 'href="?rank=3"' in text
        assert "of rank 3" in browser.get(f"/searches/{search}/logs/t0001?rank=3").text
        assert "no log" in browser.get(f"/searches/{search}/logs/t0001?rank=1").text

    @pytest.mark.security("paths")
    def test_no_link_is_followed_and_no_other_file_is_shown(self, browser, search, attempt, tmp_path):
        (tmp_path / "secret").write_text("s3cret-word")
        (attempt.path / "rank-00000.log").symlink_to(tmp_path / "secret")
        answers = [browser.get(f"/searches/{search}/logs/t0001")]
        assert answers[0].status_code == 503
        for path in ("t0001?rank=../secret", "t0001?rank=-1", "t9999", "..%2fsearch.yaml", "t0001.a9"):
            answers.append(browser.get(f"/searches/{search}/logs/{path}"))
            assert answers[-1].status_code == 404, path
        assert not any("s3cret-word" in answer.text for answer in answers)

    def test_the_trials_are_listed_the_newest_first(self, browser, search, attempt):
        text = browser.get(f"/searches/{search}/logs").text
        assert text.index("/logs/t0003") < text.index("/logs/t0001")
        assert "tp2 pp2" in text


def test_the_list_shows_every_search_with_the_way_to_its_report(service, browser):
    assert "No search yet" in browser.get("/").text
    searches = [submitted(service) for _ in range(2)]
    text = browser.get("/").text
    assert "2 searches" in text
    assert all(f'<a href="/searches/{search}">{search}</a>' in text for search in searches)
    assert "parameters" in text


def test_a_search_that_was_given_up_is_reported_with_the_reason(service, browser, search):
    entry = service.supervisor.searches()[search]
    service.supervisor._set(replace(entry, state=DriverState.STOPPED, detail="its <code> has changed"))
    assert "no driver: its &lt;code&gt; has changed" in browser.get("/").text


def test_a_search_has_a_page_that_follows_it_and_its_report_without_scripts(browser, search):
    page, report = browser.get(f"/searches/{search[:-2]}"), browser.get(f"/searches/{search}/report")
    assert "EventSource" in page.text
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert f"<title>{search}: report</title>" in page.text
    assert "No layout has been measured yet" in report.text
    assert "<script>" not in report.text
    assert "script-src 'none'" in report.headers["content-security-policy"]


def test_whoever_looks_on_has_no_trial_read_from_the_ledger(service, browser, search, monkeypatch):
    monkeypatch.setattr(
        "orchestrator.service.supervisor.DriverSupervisor.searches", lambda self: {}
    )  # as once it has ended
    monkeypatch.delattr("trials.ledger.reader.LedgerReader.search")
    for given in (search, search[:-2]):
        assert browser.get(f"/searches/{given}/report").status_code == 200


def test_its_events_tell_when_there_is_another_report(own_home, tmp_path):
    with served(own_home, tmp_path, AuthPolicy.on_port(TOKEN, 7000, PAGE_KEY)) as service:
        search = submitted(service)
        told = service.client.get(f"/searches/{search}/events", headers=PROGRAM).text
        reports = [json.loads(line[6:]) for line in told.splitlines() if line.startswith('data: {"seq"')]
        assert [report["is_ended"] for report in reports[:-1]] == [False] * (len(reports) - 1)
        assert reports[-1]["is_ended"]
        text = service.client.get(f"/searches/{search}/report", headers=PROGRAM).text
        assert "completed" in text
        assert 'data-trial="t0003"' in text


@pytest.mark.security("paths")
def test_a_search_that_is_not_there_is_reported_as_a_page(browser):
    for path in ("none-abcdef", "%2e%2e", "A", "a%00b", "x" * 70, "..%2f..%2fetc%2fpasswd"):
        for what in ("", "/report", "/events"):
            assert browser.get(f"/searches/{path}{what}").status_code == 404, (path, what)


def test_a_journal_that_cannot_be_read_here_is_reported_as_a_page(service, browser, search, tmp_path):
    (tmp_path / "runs" / search / "journal.jsonl").rename(tmp_path / "elsewhere")
    answer = browser.get(f"/searches/{search}/events")
    assert answer.status_code == 404
    assert "its folder is visible" in answer.text


def test_a_ledger_out_of_reach_is_reported_as_a_page(browser, monkeypatch):
    def unreachable(*_):
        raise ExternalError("the database does not answer", "ask again")

    monkeypatch.setattr("orchestrator.service.search_list.LedgerReader", unreachable)
    answer = browser.get("/")
    assert answer.status_code == 503
    assert "The database does not answer." in answer.text


def test_who_comes_by_the_socket_has_no_pages_and_no_description_has_them(service, own_home, tmp_path):
    with served(own_home / "other", tmp_path) as by_socket:
        assert by_socket.client.get("/").json()["error"]["code"] == "unknown_path"
    paths = service.client.get("/openapi.json", headers=PROGRAM).json()["paths"]
    assert all(path.startswith("/v1/") for path in paths)


def test_the_key_of_the_pages_outlives_the_service_and_is_its_users_alone(own_home):
    state_dir = ServiceStateDir.of(own_home)
    with state_dir.lock():
        key = state_dir.page_key()
    with state_dir.lock():
        assert state_dir.page_key() == key
    file = own_home / "service" / "page_key"
    assert file.stat().st_mode & 0o777 == 0o600
    for left in (b"", b"\n", key[:9].encode(), b"\xff"):
        file.write_bytes(left)
        other = state_dir.page_key()
        assert len(other) == len(key)
        assert other != key
