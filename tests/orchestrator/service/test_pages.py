"""Pages of the service: access, content, and headers."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from dashboards.access.browser_sessions import entry_address
from orchestrator.service.state_dir import ServiceStateDir
from orchestrator.service.supervisor import DriverState
from search_spaces.errors import ExternalError
from tests.orchestrator.service.asking import Served, served

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


@pytest.mark.security("service")
def test_what_may_not_be_read_is_reported_as_a_page_and_of_the_interface_as_an_object(service):
    answer = service.client.get("/", headers=HERE)
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "Open an address printed by parlay serve --page." in answer.text
    assert service.client.get("/v1/searches", headers=HERE).json()["error"]["code"] == "token"


@pytest.mark.security("service")
def test_every_page_is_kept_from_scripts_of_others_frames_and_caches(browser, search):
    for page in ("/", f"/searches/{search}", f"/searches/{search}/report", "/searches/none-abcdef", "/enter"):
        headers = browser.get(page).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not {"unsafe-eval", "http:", "https:", "*"} & set(policy.replace("'", "").split())
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_list_shows_every_search_with_the_way_to_its_report(service, browser):
    assert "No search yet" in browser.get("/").text
    searches = [submitted(service) for _ in range(2)]
    text = browser.get("/").text
    assert "2 searches" in text
    assert all(f'<a href="/searches/{search}">{search}</a>' in text for search in searches)


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

    monkeypatch.setattr("orchestrator.service.handlers.LedgerReader", unreachable)
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
