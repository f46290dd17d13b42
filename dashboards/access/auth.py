"""Who may speak to a server of Parlay's on loopback: one way in for the service and for MLflow's pages."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from dashboards.access.browser_sessions import ENTRY_PATH, Sessions


@dataclass(frozen=True)
class RequestRejected(Exception):
    """Why a request is not let in: an HTTP status, a stable word, the words and what to do."""

    status: int
    code: str
    message: str
    fix: str | None = None


@dataclass(frozen=True)
class AuthPolicy:
    """Who may come in. On a unix socket the file system decides, and all are absent.

    On a port every request names one of `hosts` as it was typed (a page of another name that resolves to this machine
    does not), comes from no web page but the server's own, and shows the token, or a cookie of `sessions` where one
    will do.
    """

    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset()
    sessions: Sessions | None = None

    @classmethod
    def on_port(cls, token: str, port: int, page_key: str) -> AuthPolicy:
        hosts = frozenset(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
        return cls(token, hosts, Sessions(token, page_key, port))

    def admit(self, scope: Scope, accepts_cookie: bool) -> None:
        """Return for a request that may come in, also one that shows the key of an address; raises RequestRejected."""
        if self.token is None:
            return
        headers = Headers(scope=scope)
        if headers.get("host") not in self.hosts:
            raise RequestRejected(
                403, "host", "the request names another host than this server's", "use 127.0.0.1 and its port"
            )
        if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in self.hosts}:
            raise RequestRejected(403, "origin", "the request comes from a web page", "ask from a program")
        if scope["path"] == ENTRY_PATH or (accepts_cookie and self._is_known_browser(headers)):
            return
        given = headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            raise RequestRejected(
                401, "token", "the request does not show the server's token", "Authorization: Bearer TOKEN"
            )

    def _is_known_browser(self, headers: Headers) -> bool:
        """Whether a cookie lets this request in, and it comes from no page that another port of this host serves."""
        is_own = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return is_own and self.sessions is not None and self.sessions.holds(headers.get("cookie", ""))


def last_answer(send: Send) -> Send:
    """`send`, with an answer that ends the connection: a stranger who asks on and reads no answer would hold it."""

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_last
