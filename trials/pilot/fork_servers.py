"""Fork servers of a pilot: each kind is a step of Slurm with a server on each node, beside the steps of the ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from search_spaces.plain_file import read_plain
from trials.pilot.files import PilotFolder, PlainStarts, write

SCRIPT, OUTPUT, LOG = "job.sh", "servers.out", "job.log"
"""Files of a kind's folder: the script of its step, what servers print, and messages of Slurm and of libraries."""

MOST_KINDS = 2
"""Kinds of servers at the same time: a search has an engine or two."""
MOST_DEATHS = 2
"""Deaths of a kind's servers, as by the kernel for memory, after which its ranks are started plain."""
START_S = 30.0
"""Longest wait for a step of servers to listen; their imports come after that."""
END_S = 5.0
"""Longest wait for the end of a step of servers before its srun is killed."""

_TASK_ENDED = re.compile(r"^srun: error: (?P<nodes>\S+): tasks? [\d,-]+: ", re.MULTILINE)
_OF_MEMORY = re.compile(r"oom.kill|Out Of Memory|exceeded memory limit")


class ServerStep:
    """The step of one kind's servers, started on construction. OSError where its folder cannot be used.

    Its nodes' servers end independently of each other.
    """

    def __init__(self, folder: Path, num_nodes: int):
        self.folder = folder.absolute()
        self._num_nodes = num_nodes
        self._began = time.monotonic()
        for name in (OUTPUT, LOG):
            (folder / name).write_bytes(b"")
        with open(folder / LOG, "ab") as log:
            self._process = subprocess.Popen(
                ["bash", SCRIPT],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def has_started(self) -> bool:
        """True once its servers listen, or some do after START_S."""
        listening = self._count_listening()
        return listening >= self._num_nodes or (listening > 0 and self._is_late)

    @property
    def refusal(self) -> str | None:
        """The reason why ranks cannot be forked, once it is known."""
        refusals = (words.get("refused") or words.get("differs") for words in self._said())
        said = next(filter(None, refusals), None)
        if said is not None or self._count_listening():
            return None if said is None else str(said)
        if self._has_ended:
            last = next(iter(_text(self.folder / LOG).strip().splitlines()[-1:]), "no message")
            return f"Slurm did not start the step of the fork servers: {last}"
        return f"the step of the fork servers did not start within {START_S:.0f} s" if self._is_late else None

    @property
    def is_damaged(self) -> bool:
        """True if the server of some node has ended: ranks start plain there."""
        return self._has_ended or _TASK_ENDED.search(_text(self.folder / LOG)) is not None

    def count_memory_kills(self, nodes: Collection[str]) -> int:
        """Return how often the kernel has killed, for memory, a server of these nodes or a rank that it had forked."""
        of_ranks = sum("oom_kill" in words and words.get("node") in nodes for words in self._said())
        log = _text(self.folder / LOG)
        ended = [found for found in _TASK_ENDED.finditer(log) if _has_any(found["nodes"], nodes)]
        return of_ranks + (len(ended) if _OF_MEMORY.search(log) else 0)

    def end(self) -> None:
        """End the servers and their ranks; srun hands the signal on."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)

    @property
    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._began >= START_S

    def _count_listening(self) -> int:
        return sum("listens" in words for words in self._said())

    def _said(self) -> Iterator[Mapping[str, Any]]:
        for line in _text(self.folder / OUTPUT).splitlines():
            with suppress(ValueError):
                if isinstance(words := json.loads(line), dict):
                    yield words

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class ForkServers:
    """Fork servers of a pilot of `num_nodes`, each kind started when a step first needs it.

    Their kinds are named as the folders that the driver made. Methods raise nothing: without a server ranks start
    plain, and the reason is written to the pilot's folder.
    """

    def __init__(self, folder: PilotFolder, num_nodes: int):
        self._folder = folder
        self._num_nodes = num_nodes
        self._steps: dict[str, ServerStep] = {}
        self._deaths: dict[str, int] = {}
        self._refused: set[str] = set()

    def is_decided(self, name: str, in_use: Collection[str | None]) -> bool:
        """Start servers of this kind if there are none; return True once it is known whether they serve.

        `in_use` are the kinds of running steps, whose servers are kept.
        """
        if name in self._refused:
            return True
        step = self._steps.get(name)
        if step is None:
            return not self._make_room(in_use) or not self._start(name)
        reason = step.refusal
        if name in in_use or (reason is None and not step.is_damaged):
            return reason is not None or step.has_started
        if reason is None:
            self._lose(name)
        else:
            self._refuse(name, reason)
        return name in self._refused

    def folder(self, name: str) -> Path | None:
        """Return the folder of this kind's sockets; None where ranks start plain."""
        step = self._steps.get(name)
        return step.folder if step is not None and step.has_started else None

    def count_memory_kills(self, name: str | None, nodes: Collection[str]) -> int:
        """Return the kills of `ServerStep.count_memory_kills`; 0 without servers."""
        step = None if name is None else self._steps.get(name)
        return 0 if step is None else step.count_memory_kills(nodes)

    def close(self) -> None:
        """End all servers."""
        for step in self._steps.values():
            step.end()

    def _start(self, name: str) -> bool:
        try:
            self._steps[name] = ServerStep(self._folder.fork_servers(name), self._num_nodes)
        except OSError as error:
            self._refuse(name, str(error))
            return False
        return True

    def _make_room(self, in_use: Collection[str | None]) -> bool:
        """End the oldest idle servers where there are as many as may be; False where none are idle."""
        if len(self._steps) < MOST_KINDS:
            return True
        idle = [name for name in self._steps if name not in in_use]
        for name in idle[:1]:  # in the order of their start
            self._steps.pop(name).end()
        return bool(idle)

    def _lose(self, name: str) -> None:
        self._steps.pop(name).end()
        self._deaths[name] = self._deaths.get(name, 0) + 1
        if self._deaths[name] >= MOST_DEATHS:
            self._refuse(name, f"fork servers have ended {MOST_DEATHS} times: see {self._folder.fork_servers(name)}")

    def _refuse(self, name: str, reason: str) -> None:
        self._refused.add(name)
        if (step := self._steps.pop(name, None)) is not None:
            step.end()
        print(f"ranks start plain: {reason}", file=sys.stderr, flush=True)
        with suppress(OSError):
            write(self._folder.plain_starts, PlainStarts(reason))


def _has_any(names: str, nodes: Collection[str]) -> bool:
    """True if srun's list of nodes may have one of these; `n[1-4]` stands for all that begin so."""
    begin, bracket, _ = names.partition("[")
    return any(node.startswith(begin) if bracket else node == names for node in nodes)


def _text(path: Path) -> str:
    try:
        return read_plain(path).decode(errors="replace")
    except (OSError, ValueError):
        return ""
