"""Sign-in addresses are valid once, cookies for a limited time."""

from __future__ import annotations

from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.access.browser_sessions import ENTRY_S, SESSION_S, Sessions, SignedIn, entry_address

NOON = 1_780_000_000.0


@pytest.fixture
def clock():
    return Mock(return_value=NOON)


@pytest.fixture
def sessions(clock):
    return Sessions("token", "page key", 7000, clock)


def key_of(token: str = "token", now: float = NOON) -> str:
    address = urlsplit(entry_address(7000, token, now))
    assert (address.netloc, address.path) == ("127.0.0.1:7000", "/enter")
    return parse_qs(address.query)["key"][0]


def cookie_of(signed_in: SignedIn | None) -> str:
    assert signed_in is not None
    value, *attributes = signed_in.set_cookie.split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    return value


@pytest.mark.security("service")
def test_a_key_opens_once(sessions):
    key = key_of()
    assert sessions.is_signed_in(cookie_of(sessions.enter(key)))
    assert sessions.enter(key) is None
    assert sessions.enter(key_of()) is not None


@pytest.mark.security("service")
def test_a_key_opens_for_ten_minutes_and_not_the_next_start_of_the_service(sessions, clock):
    early, late = key_of(), key_of()
    clock.return_value += ENTRY_S
    assert sessions.enter(early) is not None
    clock.return_value += 1
    assert sessions.enter(late) is None
    assert sessions.enter(early) is None
    assert Sessions("next token", "page key", 7000, clock).enter(key_of(now=clock())) is None


@pytest.mark.security("service")
def test_an_action_key_belongs_to_one_cookie_for_its_time_and_ends_with_the_service(sessions, clock):
    signed_in, other = sessions.enter(key_of()), sessions.enter(key_of())
    assert sessions.may_act(cookie_of(signed_in), signed_in.action_key)
    assert not sessions.may_act(cookie_of(other), signed_in.action_key)
    assert not sessions.may_act("", signed_in.action_key)
    assert not sessions.may_act(cookie_of(signed_in), "")
    assert not sessions.may_act(cookie_of(signed_in), cookie_of(signed_in).partition("=")[2])
    assert signed_in.action_key not in repr(signed_in)
    later, cookie = Sessions("next token", "page key", 7000, clock), cookie_of(signed_in)
    clock.return_value += SESSION_S
    assert later.is_signed_in(f"other=1; {cookie}"), "for two weeks, also after a restart of the service"
    assert not later.may_act(cookie, signed_in.action_key)
    assert sessions.may_act(cookie, signed_in.action_key)
    clock.return_value += 1
    assert not later.is_signed_in(cookie)
    assert not sessions.may_act(cookie, signed_in.action_key)


@pytest.mark.security("service")
@pytest.mark.parametrize(
    "forged",
    ["", "x", "1.2.3", "99999999999.x.", ".", "é.é.é", "\udcff", "99999999999", "99999999999.nonce." + "0" * 64],
)
def test_what_was_not_given_out_here_lets_nobody_in(sessions, forged):
    assert sessions.enter(forged.encode("utf-8", "replace").decode()) is None
    assert not sessions.is_signed_in(f"parlay-7000={forged}".encode("utf-8", "replace").decode())


@pytest.mark.security("service")
def test_no_key_is_a_cookie_and_no_cookie_a_key_and_another_service_has_its_own(sessions, clock):
    key = key_of()
    assert not sessions.is_signed_in(f"parlay-7000={key}")
    name, _, value = cookie_of(sessions.enter(key)).partition("=")
    assert sessions.enter(value) is None
    assert not Sessions("token", "other", 7000, clock).is_signed_in(f"{name}={value}")
    assert not Sessions("token", "page key", 7001, clock).is_signed_in(f"{name}={value}")
    until, *rest = value.split(".")
    assert not sessions.is_signed_in(f"{name}={int(until) + 1}.{'.'.join(rest)}")
    assert not Sessions("token", "page key", 7001, clock).is_signed_in(f"parlay-7001={value}")


@pytest.mark.security("service")
@pytest.mark.parametrize(
    "other",
    ['a={"b": 1}', "words with blanks=1", "bare", "a(b)=1", "@a=1", "\xe9=\xe9", 'a="not closed', "parlay-7000=x", ""],
    ids=["json", "blanks", "bare", "brackets", "at", "latin", "quote", "ours", "nothing"],
)
def test_cookies_of_other_programs_of_this_host_keep_nobody_out(sessions, other):
    cookie = cookie_of(sessions.enter(key_of()))
    assert sessions.is_signed_in(f"{other}; {cookie}")
    assert sessions.is_signed_in(f"{cookie}; {other}")
    assert not sessions.is_signed_in(other)
