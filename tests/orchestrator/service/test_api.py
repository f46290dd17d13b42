"""All requests and errors of the service: answers as openapi.json has them, without tracebacks."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from orchestrator.search.lease import acquire_lease, release_lease
from orchestrator.service.client import Client
from orchestrator.service.middleware import MAX_BODY_BYTES, MAX_LOGGED_REJECTIONS, AuthMiddleware, _RequestLog
from orchestrator.service.quota import QuotaFile
from tests.orchestrator.cli.parlay import parlay_here
from tests.orchestrator.service.asking import served
from trials.files.folders import SearchFolder
from trials.ledger.journal import Journal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def service(own_home, tmp_path):
    with served(own_home, tmp_path) as found:
        yield found


@pytest.fixture
def idle(own_home, tmp_path, monkeypatch):
    """A service that drives no search."""
    monkeypatch.setattr("orchestrator.service.supervisor.DriverSupervisor.iterate", lambda self: None)
    with served(own_home, tmp_path) as found:
        yield found


def error_of(answer) -> dict:
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    return answer.json()["error"]


def test_a_search_is_submitted_driven_and_looked_at(service):
    search = service.submitted()
    status = service.ended(search)
    assert (status["state"], status["end_reason"], status["driver"]) == ("completed", "space_exhausted", None)
    assert status["trials"] == {"measured": 2, "stopped_early": 0, "failed": 1, "cancelled": 0, "in_flight": 0}
    about = f"/v1/searches/{search}"
    trials = service.client.get(f"{about}/trials").json()["trials"]
    assert [(t["state"], t["reason"]) for t in trials] == [
        ("measured", None),
        ("failed", "gpu_oom"),
        ("measured", None),
    ]
    assert trials[0]["measured"]["tokens_per_sec"] > 0
    assert trials[1]["attempts"][0]["started_at"].endswith("Z")
    best = service.client.get(f"{about}/best").json()
    assert (best["trial"], best["verdict"]) == (status["best"]["trial"], status["verdict"])
    recipe = service.client.get(f"{about}/recipe").json()
    assert recipe["recipe"]["layout"] == best["layout"]
    assert Path(recipe["folder"], "recipe.yaml").exists()
    assert service.client.get(f"{about}/logs/t0002").json()["attempt"] == "a1"
    assert status == parlay_here("status", search, "--json", cwd=service.folder).json
    (row,) = service.client.get("/v1/searches").json()["searches"]
    assert (row["search_id"], row["num_trials"], row["folder"]) == (search, 3, status["recipe"].rpartition("/")[0])
    assert service.client.get("/v1/health").json()["drivers"] == {"waiting": 0, "driving": 0, "stopped": 0}


@pytest.mark.bad_input(45)
def test_an_id_may_be_shortened_while_it_is_unique(service):
    first = service.submitted()
    service.ended(first)
    assert service.client.get(f"/v1/searches/{first[:7]}").json()["search_id"] == first
    service.ended(service.submitted())
    answer = service.client.get("/v1/searches/table")
    assert (answer.status_code, error_of(answer)["code"]) == (409, "ambiguous_id")


@pytest.mark.bad_input(46)
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"yaml": None}, "body.yaml"),
        ({"directory": "relative"}, "body.directory"),
        ({"directory": "/a\0b"}, "body.directory"),
        ({"set": "a=b"}, "body.set"),
        ({"yaml": "\ud800"}, None),
        ({"set": ["launcher={kind: ray, address: auto}"]}, "launcher.address"),
    ],
)
def test_a_bad_submission_is_refused(service, changes, key):
    text = json.dumps(service.body(**changes))
    answer = service.client.post("/v1/searches", content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert key is None or error_of(answer)["key"] == key


@pytest.mark.bad_input(46)
@pytest.mark.security("paths")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/searches/nothing-abcdef", 404, "unknown_id"),
        ("GET", "/v1/searches/..%2f..%2fetc%2fpasswd", 404, "unknown_path"),
        ("GET", "/v1/searches/a%00b", 400, "usage"),
        ("GET", "/v1/searches/a/logs/%2e%2e", 400, "usage"),
        ("GET", "/v1/nothing", 404, "unknown_path"),
        ("GET", "/v1/searches/a/events", 400, "usage"),
        ("DELETE", "/v1/searches/a", 405, "method"),
    ],
)
def test_what_is_not_there_is_refused(idle, method, path, status, code):
    answer = idle.client.request(method, path, headers={"last-event-id": "-1"} if path.endswith("a/events") else {})
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)


def test_what_a_search_has_not_yet_is_a_conflict(idle):
    search = idle.submitted()
    for what in ("best", "recipe"):
        answer = idle.client.get(f"/v1/searches/{search}/{what}")
        assert (answer.status_code, error_of(answer)["code"]) == (409, "not_ready")
    assert idle.client.get(f"/v1/searches/{search}/logs/t0001").status_code == 404


def test_the_status_of_a_search_that_waits_is_what_the_command_prints(idle, monkeypatch):
    class Asking(Client):
        def _ask(self, method, path, body=None):
            return idle.client.request(method, path).json()

    monkeypatch.setattr("orchestrator.service.client.running_service", lambda home: (Asking(None, 1, None), {}))
    search = idle.submitted()
    status = idle.client.get(f"/v1/searches/{search}").json()
    assert status["driver"]["detail"] == "the search is waiting for the service to drive it"
    assert status == parlay_here("status", search, "--json", cwd=idle.folder).json


def test_a_search_that_another_driver_holds_is_not_resumed(idle, monkeypatch):
    search = idle.submitted()
    folder = SearchFolder(Path(idle.client.get("/v1/searches").json()["searches"][0]["folder"]))
    held = acquire_lease(folder, time.time())
    answer = idle.client.post(f"/v1/searches/{search}/resume")
    assert (answer.status_code, error_of(answer)["code"]) == (409, "held")
    release_lease(folder, held, time.time())
    assert idle.client.post(f"/v1/searches/{search}/resume").status_code == 202


def test_a_search_in_a_folder_is_taken_up_whatever_the_ledger_knows(service, tmp_path):
    search = service.submitted()
    service.ended(search)
    folder = tmp_path / "runs" / search
    other = {"folder": str(folder), "ledger_url": f"sqlite:///{tmp_path / 'other.db'}"}
    assert service.client.post(f"/v1/searches/{search}/resume", json=other).json()["state"] == "completed"
    answer = service.client.post(f"/v1/searches/{search}/resume", json={"folder": str(tmp_path)})
    assert (answer.status_code, error_of(answer)["code"]) == (404, "unknown_id")


def events_of(text: str) -> list[tuple[int, str]]:
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if "id: " in block
    ]
    return [(int(block["id"]), block["event"]) for block in blocks]


def test_events_end_with_the_search_and_go_on_after_the_last_one_that_was_read(service, tmp_path):
    search = service.submitted()
    told = events_of(service.client.get(f"/v1/searches/{search}/events").text)
    journal = [(e.seq, e.kind.value) for e in Journal(tmp_path / "runs" / search / "journal.jsonl").read()]
    assert told == journal
    rest = service.client.get(f"/v1/searches/{search}/events", headers={"last-event-id": "5"}).text
    assert events_of(rest) == journal[5:]


@pytest.mark.parametrize("damage", [Path.unlink, lambda journal: journal.write_bytes(b"{}\n")], ids=["gone", "damaged"])
def test_events_of_a_journal_that_cannot_be_read_are_an_answer_and_no_stream_that_breaks(service, damage):
    search = service.submitted()
    service.ended(search)
    (journal,) = service.folder.glob(f"*/{search}/journal.jsonl")
    damage(journal)
    answer = service.client.get(f"/v1/searches/{search}/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "refused")
    assert "journal.jsonl" in answer.json()["error"]["message"]


@pytest.mark.bad_input(46)
@pytest.mark.security("service")
def test_a_bug_is_reported_without_its_traceback_and_logged_with_it(service, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr("orchestrator.service.handlers.LedgerReader", broken)
    answer = service.client.get("/v1/searches")
    assert (answer.status_code, error_of(answer)["code"]) == (500, "bug")
    assert "secret" not in answer.text
    assert any("ZeroDivisionError: secret words" in line for line in service.log)


PIECE = b"x" * 2**16
TOO_LARGE = [PIECE] * (MAX_BODY_BYTES // len(PIECE) + 1)
JSON = "application/json"


@pytest.mark.bad_input(46)
@pytest.mark.security("service")
@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"".join(TOO_LARGE), JSON, 413, "too_large"),
        (TOO_LARGE, JSON, 413, "too_large"),
        *((b"{}", kind, 415, "media_type") for kind in (None, "application/x-www-form-urlencoded")),
        (b"{}", "application/jsonx", 415, "media_type"),
    ],
    ids=["large", "in pieces", "none", "form", "almost"],
)
def test_a_body_that_is_too_large_or_of_another_type_is_refused(idle, content, kind, status, code):
    sent = iter(content) if isinstance(content, list) else content
    answer = idle.client.post("/v1/searches", content=sent, headers={} if kind is None else {"content-type": kind})
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)


TOKEN = "s3cret-token"
HERE = {"host": "127.0.0.1:7000", "authorization": f"Bearer {TOKEN}"}


@pytest.mark.bad_input(46)
@pytest.mark.security("service")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (HERE, 200),
        (HERE | {"origin": "http://127.0.0.1:7000"}, 200),
        ({"host": "127.0.0.1:7000"}, 401),
        (HERE | {"authorization": "Bearer other"}, 401),
        (HERE | {"host": "evil.example:7000"}, 403),
        (HERE | {"host": "127.0.0.1:7001"}, 403),
        (HERE | {"origin": "http://evil.example"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/v1/health", "/openapi.json"])
def test_on_a_port_only_who_shows_the_token_comes_in(own_home, tmp_path, path, headers, status):
    with served(own_home, tmp_path, AuthPolicy.on_port(TOKEN, 7000, "page key")) as service:
        answer = service.client.get(path, headers=headers)
        assert answer.status_code == status
        assert TOKEN not in answer.text + "".join(service.log)


@pytest.mark.bad_input(50)
@pytest.mark.security("service", "secrets")
def test_the_log_has_a_line_a_request_without_its_query_and_without_control_characters(idle):
    idle.client.get("/v1/health?token=s3cret")
    idle.client.get("/v1/%1b%5b2J%0aGET")
    assert [line.rsplit(" ", 2)[0] for line in idle.log[:1]] == ["GET /v1/health 200"]
    assert "s3cret" not in "".join(idle.log)
    assert not any("\x1b" in line or "\n" in line for line in idle.log)


@pytest.mark.security("service")
@pytest.mark.parametrize(("path", "status"), [("/v1/health", 401), ("/enter?key=none", 200)])
def test_a_stranger_fills_no_log_and_asks_once_a_connection(path, status, logged):
    async def nothing(scope, receive, send) -> None:
        await JSONResponse({})(scope, receive, send)

    client = TestClient(
        AuthMiddleware(nothing, AuthPolicy.on_port("token", 7000, "key")), base_url="http://127.0.0.1:7000"
    )
    for _ in range(10 * MAX_LOGGED_REJECTIONS):
        answer = client.get(path)
        assert (answer.status_code, answer.headers.get("connection")) == (status, "close")
    assert len(logged) == MAX_LOGGED_REJECTIONS
    assert "connection" not in client.get("/v1/health", headers={"authorization": "Bearer token"}).headers
    assert " 200 " in logged[-1], "the owner's have a line each"
    lines = _RequestLog()
    for now in (*[0.0] * (MAX_LOGGED_REJECTIONS + 7), *[61.0] * MAX_LOGGED_REJECTIONS, 122.0):
        lines.write("refused", True, now + 1e6)
    assert logged[-MAX_LOGGED_REJECTIONS - 2 :] == [
        "7 more requests were rejected",
        *["refused"] * (MAX_LOGGED_REJECTIONS + 1),
    ]


def test_searches_share_what_may_be_in_flight(own_home, tmp_path):
    """Active trials are those in flight at the driver's next request, whatever was granted before."""
    active, is_over = [], threading.Event()

    def look() -> None:
        while not is_over.wait(0.001):
            found = QuotaFile(own_home / "service" / "quota.json", 1)._read()
            active.append({search: request.active for search, request in found.items()})

    with served(own_home, tmp_path, max_in_flight=1) as service:
        looking = threading.Thread(target=look)
        looking.start()
        searches = [service.submitted(set=["search.parallel_trials=3"]) for _ in range(3)]
        assert [service.ended(search)["state"] for search in searches] == ["completed"] * 3
        is_over.set()
        looking.join()
        assert service.client.get("/v1/health").json()["max_in_flight"] == 1
    assert {search for each in active for search, count in each.items() if count} == set(searches)
    assert max(sum(each.values()) for each in active) == 1


EXAMPLES = 7
"""An operation; together they take a few seconds."""

CONFIG = {
    "generation": {"allow-x00": True, "deterministic": True},
    "checks": {
        # A text that is no search file fits its description all the same, and so does an id of no search.
        "positive_data_acceptance": {"expected-statuses": [200, 201, 202, 400, 404, 409]},
        # Too long a text is most often too large a body, which is not even read.
        "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 409, 413, 415]},
    },
}


@pytest.fixture
def described(own_home, tmp_path, monkeypatch):
    """A service with one search that has ended; submitted searches are not driven, since only the interface is
    fuzzed."""
    with served(own_home, tmp_path) as service:
        search = service.submitted()
        service.ended(search)
        monkeypatch.setattr("orchestrator.service.supervisor.DriverSupervisor.iterate", lambda self: None)
        config = SchemathesisConfig.from_dict(CONFIG)
        yield service, search, schemathesis.openapi.from_asgi("/openapi.json", service.app, config=config)


@pytest.mark.timeout(300)
def test_every_answer_is_one_that_its_description_has(described):
    service, search, schema = described
    load_all_checks()
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 11
    for operation in operations:
        _fuzz(operation.as_strategy())
        if [*operation.iter_parameters(), *operation.body]:
            _fuzz(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        if "{search}" in operation.path:
            _fuzz(operation.as_strategy(path_parameters={"search": search}))
    statuses = Counter(line.split()[-3] for line in service.log)
    assert {"200", "202", "400", "404"} <= set(statuses), statuses
    assert statuses.total() > 100  # of 11 operations, at EXAMPLES or fewer each and for each way of asking


def _fuzz(strategy) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=strategy)
    def answers(case):
        case.call_and_validate()

    answers()
