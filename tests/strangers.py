"""Another user of this machine, simulated by root."""

from __future__ import annotations

import os

import pytest

STRANGER = 54321
"""A number that is no user's here."""

needs_a_stranger = pytest.mark.skipif(os.geteuid() != 0, reason="no leave to be another user")
