"""Privacy of a loopback Ray, before it is started."""

from __future__ import annotations

import os
from unittest.mock import MagicMock

import pytest

from orchestrator.launchers.ray.runtime import _secure_loopback


@pytest.mark.security("ray")
@pytest.mark.parametrize("of_the_shell", [None, "", "a token that others know"])
def test_a_ray_of_our_own_has_a_token_that_is_made_anew_each_time_whatever_the_shell_says(monkeypatch, of_the_shell):
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # put back afterwards, whatever is done to it
    if of_the_shell is None:
        monkeypatch.delenv("RAY_AUTH_TOKEN")
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN", of_the_shell)
    tokens = []
    for _ in range(2):
        _secure_loopback(MagicMock())
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert len({of_the_shell, *tokens}) == 3
    assert all(len(token) == 64 for token in tokens)
