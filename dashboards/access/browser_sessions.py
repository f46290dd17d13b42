"""How a browser gets in: by an address that opens once, for which it is given a cookie.

The key in the address is signed with the service's token, so that only its user makes one, and it opens no later start
of the service. The cookie is signed with a key that outlives the service, so that a page which stands open comes back
after a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator

ENTRY_PATH = "/enter"
ENTRY_S = 600
"""Within which an address opens."""
SESSION_S = 24 * 3600
"""A tab that stands open sends its cookie to whoever has the port, also while the service is stopped."""


def entry_address(port: int, token: str, now: float) -> str:
    """Where a browser opens the pages, once; whoever has the address can."""
    key = _signed(token, "entry", f"{int(now) + ENTRY_S}.{secrets.token_urlsafe(16)}")
    return f"http://127.0.0.1:{port}{ENTRY_PATH}?key={key}"


class Sessions:
    """The browsers that may read the pages of the service on `port`. For many threads."""

    def __init__(self, token: str, page_key: str, port: int, clock: Callable[[], float] = time.time):
        self._token = token
        self._page_key = page_key
        self._name = f"parlay-{port}"  # cookies know no ports, and another service may have one
        self._purpose = f"session {port}"
        self._clock = clock
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    def enter(self, key: str) -> str | None:
        """The Set-Cookie that this key is changed for; None where it is none, too old, or was changed before."""
        now = self._clock()
        until = _until(self._token, "entry", key, now)
        with self._lock:
            self._used = {used: end for used, end in self._used.items() if end >= now}
            if until is None or key in self._used:
                return None
            self._used[key] = until
        value = _signed(self._page_key, self._purpose, f"{int(now) + SESSION_S}.{secrets.token_urlsafe(16)}")
        return f"{self._name}={value}; Max-Age={SESSION_S}; Path=/; HttpOnly; SameSite=Strict"

    def holds(self, cookies: str) -> bool:
        """Whether one of these cookies, as in the header, was given out here and is not too old."""
        now = self._clock()
        return any(_until(self._page_key, self._purpose, value, now) is not None for value in self._own(cookies))

    def _own(self, cookies: str) -> Iterator[str]:
        """The values under our name. Every program of this host has cookies in the header, and some of them are such as
        the standard library's reader stops at."""
        for cookie in cookies.split(";"):
            name, _, value = cookie.partition("=")
            if name.strip() == self._name:
                yield value.strip()


def _signed(key: str, purpose: str, text: str) -> str:
    return f"{text}.{_signature(key, purpose, text)}"


def _until(key: str, purpose: str, signed: str, now: float) -> int | None:
    """Until when what was signed holds, in UTC seconds since the epoch; None where it does not, or no more."""
    text, _, signature = signed.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(key, purpose, text).encode()):
        return None
    until = int(text.partition(".")[0])
    return until if now <= until else None


def _signature(key: str, purpose: str, text: str) -> str:
    return hmac.new(key.encode(), f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()
