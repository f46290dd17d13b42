"""Shares that several processes ask: the demands lie in a small file, as the record of no search has them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from orchestrator.service.quota import Demand, Shares
from trials.files.folders import read_json

SHARES_SCHEMA = "parlay.shares/1"


class ShareFile:
    """`Shares` in this file (0600), which is on local disk: its lock holds between the processes of this machine.

    `capacity` is how many trials may be in flight in all.
    """

    def __init__(self, path: Path, capacity: int):
        self._path = path
        self._capacity = capacity

    def reset(self, held: Mapping[str, int]) -> None:
        """Forget all demands but the trials that these searches hold, which nobody drives yet."""
        with self._locked():
            self._write({search: Demand(count, count) for search, count in held.items()})

    def ask(self, search: str, held: int, more: int) -> int:
        """How many of `more` trials the search may begin now, beside those it holds (as Shares.ask)."""
        with self._locked():
            shares = Shares(self._capacity, self._read())
            begun = shares.ask(search, held, more)
            self._write(shares.demands)
            return begun

    def expect(self, search: str, held: int) -> None:
        """A search that nobody drives at the moment holds so many trials; 0 where it has ended."""
        with self._locked():
            demands = self._read()
            demands.pop(search, None)
            if held:
                demands[search] = Demand(held, held)
            self._write(demands)

    def _read(self) -> dict[str, Demand]:
        """What the searches asked for last; a file that is not there, or was cut, tells of none: they ask again."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = read_json(self._path) or {}
            return {row["search_id"]: Demand(row["held"], row["wanted"]) for row in found["searches"]}
        return {}

    def _write(self, demands: Mapping[str, Demand]) -> None:
        rows = [{"search_id": search, **asdict(demand)} for search, demand in demands.items()]
        part = self._path.with_name(f".{self._path.name}.part")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            json.dump({"schema": SHARES_SCHEMA, "searches": rows}, stream)
        os.replace(part, self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
