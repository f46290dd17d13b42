"""Authentication in front of MLflow's server, as a protocol class for its uvicorn."""

from __future__ import annotations

import functools
import os
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dashboards.access.auth import AuthPolicy, RequestRejected, last_answer
from dashboards.access.browser_sessions import ENTRY_PATH
from dashboards.access.http_protocol import BoundedProtocol
from dashboards.access.mlflow_token import PORT_VARIABLE, TOKEN_VARIABLE
from dashboards.mlflow.links import searches_link
from dashboards.report.live_page import message_page

ANOTHER_ADDRESS = "parlay dashboard --page prints an address that is valid once, within ten minutes"


class MlflowProtocol(BoundedProtocol):
    """HTTP protocol that passes requests to MLflow's application through `MlflowAuthMiddleware`."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.app = MlflowAuthMiddleware(self.app, _auth_policy())


@functools.cache
def _auth_policy() -> AuthPolicy:
    token = os.environ[TOKEN_VARIABLE]
    return AuthPolicy.on_port(token, int(os.environ[PORT_VARIABLE]), page_key=token)


class MlflowAuthMiddleware:
    """ASGI middleware: exchanges the key of a sign-in address for a cookie and rejects all other unauthorised requests.

    A cookie has the rights of the token, since MLflow's pages read by POST.
    """

    def __init__(self, app: ASGIApp, policy: AuthPolicy):
        self._app = app
        self._auth_policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._auth_policy.admit(scope, accepts_cookie=True)
        except RequestRejected as refused:
            await _refusal(refused)(scope, receive, last_answer(send))
            return
        if scope["path"] == ENTRY_PATH:
            await self._sign_in(scope)(scope, receive, last_answer(send))
        else:
            await self._app(scope, receive, send)

    def _sign_in(self, scope: Scope) -> Response:
        """Page that goes on to the searches of the address's experiment. It refreshes: after an HTTP redirect from
        another site a browser would not send the cookie."""
        asked = parse_qs(scope["query_string"].decode("ascii", "replace"))
        key, experiment = (asked.get(name, [""])[0] for name in ("key", "experiment"))
        signed_in = self._auth_policy.sessions.enter(key) if self._auth_policy.sessions is not None else None
        if signed_in is None:
            return _page("Sign-in address expired", ANOTHER_ADDRESS, status=401)
        searches = searches_link(experiment) if experiment.isdecimal() else ""
        return _page("Signed in", goes_to=f"/{searches}", headers={"set-cookie": signed_in.set_cookie})


def _refusal(refused: RequestRejected) -> Response:
    text = f"{refused.message}; a browser: {ANOTHER_ADDRESS}; a program: {refused.fix}"
    return PlainTextResponse(text + "\n", refused.status)


def _page(
    title: str, *sentences: str, goes_to: str | None = None, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    page = message_page(title, *sentences, goes_to=goes_to)
    policy = {"content-security-policy": f"{page.policy}; frame-ancestors 'none'", "referrer-policy": "no-referrer"}
    return HTMLResponse(page.text, status, policy | {"cache-control": "no-store"} | (headers or {}))
