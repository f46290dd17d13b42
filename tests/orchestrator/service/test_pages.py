"""Pages of the service: access, content, and headers."""

from __future__ import annotations

import re
import time
from contextlib import closing

import pytest
from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from dashboards.access.browser_sessions import entry_address
from orchestrator.service.state_dir import ServiceStateDir
from tests.orchestrator.service.asking import served
from tests.orchestrator.service.services import driver_exit
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
    return service.submitted(PROGRAM)


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
    ({"sec-fetch-site": "same-origin"}, 200),
    ({"sec-fetch-site": "none"}, 200),
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


def test_a_report_is_sent_again_only_once_it_has_changed(browser, search):
    first = browser.get(f"/searches/{search}/report")
    event = first.headers["parlay-event"]
    for after, status in ((event, 204), ("0", 200), ("", 200)):
        again = browser.get(f"/searches/{search}/report?after={after}")
        assert (again.status_code, again.headers["parlay-event"]) == (status, event)
        assert bool(again.content) is (status == 200)


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
    for path, status in {"/v1/searches": 401, "/openapi.json": 401, "/favicon.ico": 404, "/other": 404}.items():
        answer = browser.request(method, path, headers=BY_A_PERSON)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
    stranger = service.client.request(method, "/v1/searches", headers=HERE | BY_A_PERSON)
    assert (stranger.status_code, stranger.headers["content-type"]) == (401, "text/html; charset=utf-8")


@pytest.mark.security("service")
def test_every_page_is_kept_from_scripts_of_others_frames_and_caches(browser, search):
    pages = ("", "/report", "/logs", "/logs/t0001")
    for page in ("/", "/searches/none-abcdef", "/enter", *(f"/searches/{search}{each}" for each in pages)):
        headers = browser.get(page).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not {"unsafe-eval", "http:", "https:", "*"} & set(policy.replace("'", "").split())
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.security("service")
def test_the_description_has_no_pages_and_names_the_token_on_a_port_alone(service, own_home, tmp_path):
    described = service.client.get("/openapi.json", headers=PROGRAM).json()
    assert described["security"] == [{"token": []}]
    assert all(path.startswith("/v1/") for path in described["paths"])
    assert "413" in described["paths"]["/v1/searches"]["post"]["responses"]
    with served(own_home / "other", tmp_path) as by_socket:
        assert by_socket.client.get("/openapi.json").json()["security"] == []
        assert by_socket.client.get("/").json()["error"]["code"] == "unknown_path"


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
            ({"origin": "null"}, "origin"),
            ({"origin": "http://127.0.0.1:7001"}, "origin"),
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
        for page in ("/", f"/searches/{search}", f"/searches/{search}/logs"):
            assert key not in browser.get(page).text
        assert not any(key in line for line in service.log)
        browser.cookies.clear()
        browser.get(address())
        answer = browser.post(f"/searches/{search}/cancel", headers=OF_A_PAGE | {"parlay-action-key": key})
        assert answer.json()["error"]["code"] == "action_key"

    @pytest.mark.security("service")
    def test_pages_that_only_read_have_neither_key_nor_button(self, own_home, tmp_path, monkeypatch):
        monkeypatch.setattr("orchestrator.service.supervisor.DriverSupervisor.iterate", lambda self: None)
        policy = AuthPolicy.on_port(TOKEN, 7000, PAGE_KEY)
        with served(own_home, tmp_path, policy, is_read_only=True) as service:
            browser = TestClient(service.app, base_url="http://127.0.0.1:7000", raise_server_exceptions=False)
            assert 'data-action-key=""' in browser.get(address()).text
            search = service.submitted(PROGRAM)
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
        """The first attempt of the search, which has ended."""
        assert (ended := driver_exit(folder)).has_finished, ended
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


@pytest.mark.security("paths")
def test_a_search_that_is_not_there_is_reported_as_a_page(browser):
    for path in ("none-abcdef", "%2e%2e", "A", "a%00b", "x" * 70, "..%2f..%2fetc%2fpasswd"):
        for what in ("", "/report"):
            assert browser.get(f"/searches/{path}{what}").status_code == 404, (path, what)


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
