"""Sign-in of browsers: a single-use address is exchanged for a cookie.

The key in the address is signed with the service's token, so only its user can make one, and a restart invalidates it.
The cookie is signed with a key that outlives the service, so that open pages keep working after a restart.

Browsers send cookies to every port of a host, so other users' programs may see the cookie: it is for reading only.
What changes a search needs an action key, too. It is given once, in the answer to the sign-in address, and kept in
the storage of the page's origin, which pages of other ports cannot read. It is bound to the cookie, and signed with the
service's token: one that a program learned that held the port while the service was stopped is not valid afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

ENTRY_PATH = "/enter"
ENTRY_S = 600
"""Seconds for which an address is valid."""
SESSION_S = 24 * 3600
"""Seconds for which a cookie is valid: an open tab sends it to any listener on the port, also while the service is
stopped."""


def entry_address(port: int, token: str, now: float) -> str:
    """Sign-in address for one browser, valid once."""
    key = _sign(token, "entry", f"{int(now) + ENTRY_S}.{secrets.token_urlsafe(16)}")
    return f"http://127.0.0.1:{port}{ENTRY_PATH}?key={key}"


@dataclass(frozen=True)
class SignedIn:
    """Set-Cookie header of a signed-in browser, and its action key."""

    set_cookie: str = field(repr=False)
    action_key: str = field(repr=False)


class Sessions:
    """Signed-in browsers of the service on `port`. Thread-safe."""

    def __init__(self, token: str, page_key: str, port: int, clock: Callable[[], float] = time.time):
        self._token = token
        self._page_key = page_key
        self._name = f"parlay-{port}"  # cookies know no ports, and another service may have one
        self._purpose = f"session {port}"
        self._clock = clock
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    def enter(self, key: str) -> SignedIn | None:
        """Cookie and action key in exchange for this key; None for an invalid, expired or used key."""
        now = self._clock()
        until = _expiry(self._token, "entry", key, now)
        with self._lock:
            self._used = {used: end for used, end in self._used.items() if end >= now}
            if until is None or key in self._used:
                return None
            self._used[key] = until
        value = _sign(self._page_key, self._purpose, f"{int(now) + SESSION_S}.{secrets.token_urlsafe(16)}")
        cookie = f"{self._name}={value}; Max-Age={SESSION_S}; Path=/; HttpOnly; SameSite=Strict"
        action_key = _sign(self._token, f"action {value}", f"{int(now) + SESSION_S}.{secrets.token_urlsafe(16)}")
        return SignedIn(cookie, action_key)

    def is_signed_in(self, cookies: str) -> bool:
        """True if the Cookie header has a valid cookie of ours."""
        now = self._clock()
        return any(
            _expiry(self._page_key, self._purpose, value, now) is not None for value in self._our_values(cookies)
        )

    def may_act(self, cookies: str, action_key: str) -> bool:
        """True if the Cookie header has a valid cookie of ours, and the action key is the one given with it."""
        now = self._clock()
        return any(
            _expiry(self._page_key, self._purpose, value, now) is not None
            and _expiry(self._token, f"action {value}", action_key, now) is not None
            for value in self._our_values(cookies)
        )

    def _our_values(self, cookies: str) -> Iterator[str]:
        """Values of the cookies with our name. The header also has those of other programs on this host, some of which
        the standard library's parser cannot read."""
        for cookie in cookies.split(";"):
            name, _, value = cookie.partition("=")
            if name.strip() == self._name:
                yield value.strip()


def _sign(key: str, purpose: str, text: str) -> str:
    return f"{text}.{_signature(key, purpose, text)}"


def _expiry(key: str, purpose: str, signed: str, now: float) -> int | None:
    """Expiry of a signed text, UTC seconds since the epoch; None if expired or invalid."""
    text, _, signature = signed.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(key, purpose, text).encode()):
        return None
    until = int(text.partition(".")[0])
    return until if now <= until else None


def _signature(key: str, purpose: str, text: str) -> str:
    return hmac.new(key.encode(), f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()
