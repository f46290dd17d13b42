"""Authentication in front of MLflow's server, and sign-in of browsers."""

from __future__ import annotations

import time

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from dashboards.access.browser_sessions import entry_address
from dashboards.mlflow.front import MlflowAuthMiddleware

pytestmark = pytest.mark.security("service")
TOKEN = {"authorization": "Bearer the token"}
PATHS = ("/", "/health", "/ajax-api/2.0/mlflow/runs/search", "/get-artifact", "/static-files/index.html", "/graphql")


@pytest.fixture
def client() -> TestClient:
    async def answer(request) -> PlainTextResponse:
        return PlainTextResponse((await request.body()).decode())

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    app = Starlette(routes=[Route("/{path:path}", answer, methods=methods)])
    return TestClient(
        MlflowAuthMiddleware(app, AuthPolicy.on_port("the token", 5000, "the token")), base_url="http://127.0.0.1:5000"
    )


def address() -> str:
    return entry_address(5000, "the token", time.time())


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_nobody_gets_anywhere_without_the_token(client, method, path):
    refused = client.request(method, path)
    assert (refused.status_code, refused.headers["connection"]) == (401, "close")
    assert client.request(method, path, headers={"authorization": "Bearer another"}).status_code == 401
    assert client.request(method, path, headers={"cookie": "parlay-5000=1.x.y"}).status_code == 401


def test_a_program_with_the_token_sends_what_it_likes_of_any_size(client):
    body = "x" * 2**21
    assert client.put("/api/2.0/mlflow-artifacts/artifacts/a", content=body, headers=TOKEN).text == body


def test_a_browser_comes_in_by_an_address_that_opens_once_and_may_then_do_all(client):
    way_in = address()
    assert client.get(way_in).status_code == 200
    assert client.post("/ajax-api/2.0/mlflow/runs/search", content="asked").text == "asked"
    client.cookies.clear()
    assert client.get(way_in).status_code == 401
    assert client.post("/ajax-api/2.0/mlflow/runs/search").status_code == 401


@pytest.mark.parametrize("query", ["", "?key=", "?key=1.x.y", "?key=%ff", "?nothing=1"])
def test_another_address_does_not_open(client, query):
    answer = client.get(f"/enter{query}")
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert answer.headers["connection"] == "close"
    assert "parlay dashboard --page" in answer.text.lower()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "elsewhere.example:5000"}, 403),
        ({"origin": "http://127.0.0.1:6000"}, 403),
        ({"origin": "http://127.0.0.1:5000"}, 200),
        ({"host": "localhost:5000", "origin": "http://localhost:5000"}, 200),
        ({"sec-fetch-site": "cross-site"}, 401),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
def test_a_page_of_another_server_does_not_ask_with_the_browsers_cookie(client, headers, status):
    client.get(address())
    assert client.post("/ajax-api/2.0/mlflow/runs/delete", headers=headers).status_code == status
