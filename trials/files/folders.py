"""Paths of a search's folder, and files that are never seen half-written. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_spaces.decoding import JsonObject, T, decode, parse_json, require_schema
from search_spaces.errors import ExternalError
from search_spaces.plain_file import MAX_BYTES, read_plain


class File:
    """A file of this name, or a folder, in the folder of a class that has it as an attribute."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, folder: Any, _kind: type) -> Path:
        return Path(folder.path, self._name)


@dataclass(frozen=True)
class AttemptFolder:
    """`trials/t0001/a1/`: the only folder a trial writes to."""

    path: Path

    spec = File("spec.json")
    """TrialSpec."""
    ranks = File("ranks.json")
    """Placement of the ranks, written by whoever starts them."""
    heartbeat = File("heartbeat")
    """Touched by rank 0 while it makes progress."""

    @property
    def best(self) -> Path:
        """The search's best.json, which a trial may read."""
        return SearchFolder(self.path.parents[2]).best

    def write_spec(self, root: Path, spec: Mapping[str, Any], check: Callable[[], None] = lambda: None) -> None:
        """Write spec.json of an attempt of the search in `root`, after this check of that folder. OSError if a link
        leads outside of it, or nothing can be written."""
        check()
        if links_outside(self.path, root):
            raise OSError(f"{self.path} is outside the search's folder")
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(self.spec, _json_bytes(spec))

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.log"

    def rank_logs(self) -> list[Path]:
        return sorted(self.path.glob("rank-*.log"))

    def metrics(self, restart: int = 0) -> Path:
        return self.path / f"metrics.r{restart}.jsonl"

    def outcome(self, restart: int = 0) -> Path:
        return self.path / f"outcome.r{restart}.json"

    def rendezvous(self, restart: int = 0) -> Path:
        """Address of rank 0, where the ranks meet."""
        return self.path / f"rendezvous.r{restart}"

    def rank_times(self, restart: int = 0) -> Path:
        """Compute times of all ranks, of a trial that told them."""
        return self.path / f"rank_times.r{restart}.json"

    def observed_step(self, rank: int, restart: int = 0) -> Path:
        """The second step of a third-party trainer's rank, as its observer saw it."""
        return self.path / f"observed_step.{rank:05d}.r{restart}.json"

    def observed_steps(self, restart: int = 0) -> list[Path]:
        """In rank order."""
        return sorted(self.path.glob(f"observed_step.*.r{restart}.json"))

    def system(self, node: int, restart: int = 0) -> Path:
        """Node metrics of the trial's node of this number, written by its first rank."""
        return self.path / f"system.n{node}.r{restart}.jsonl"

    def last_restart(self) -> int:
        """The highest restart with files here; 0 without any."""
        names = [*self.path.glob("metrics.r*.jsonl"), *self.path.glob("outcome.r*.json")]
        numbers = (path.name.split(".")[1].removeprefix("r") for path in names)
        return max((int(number) for number in numbers if number.isdigit()), default=0)


HISTORY_FILE = "requirements.jsonl"
"""File of a recipe with the results of `parlay replay --require`, a line each."""


@dataclass(frozen=True)
class SearchFolder:
    """A search's folder on the shared file system, sufficient to resume the search anywhere.

    `named` is the path that a person gave; None where they did not give the folder.
    """

    path: Path
    named: str | None = field(default=None, compare=False)

    yaml = File("search.yaml")
    """The search file as given."""
    json = File("search.json")
    """The search with everything resolved."""
    journal = File("journal.jsonl")
    """The events, one a line; the ledger can be rebuilt from it."""
    lease = File("lease.json")
    """Lease of the driver."""
    best = File("best.json")
    """The fastest layouts, for early stopping."""
    mlflow = File("mlflow.json")
    """Address and run id of the search in MLflow."""
    driver_log = File("driver.log")
    """Log of a driver in the background."""
    driver_script = File("driver.sh")
    """Batch script of a driver that is a job of its own."""
    cron_script = File("cron.sh")
    """Script for cron, which runs one driver iteration at a time."""
    launcher = File("launcher.json")
    """State of the jobs in flight, handed over from one driver on Slurm to the next."""
    recipe = File("recipe")
    """The recipe."""
    report = File("report.html")
    """The report of the search, one HTML page."""
    warm_start = File("warm_start.csv")
    """Trials of other searches that this one learns from, as they were when it was created."""
    measured = File("measured.csv")
    """The layouts that the ended search has measured, as a measured table."""
    notified = File("notified")
    """A file for each event that was notified (`end.json`), written just before the notification is sent."""
    code = File("code")
    """Snapshot of the compute-side source that every trial of this search runs."""
    pilots = File("pilots")
    """Folders of the allocations that trials run in."""

    @property
    def search_id(self) -> str:
        return self.path.name

    @property
    def cli_name(self) -> str:
        """The search as a command's argument: its id, or the folder where a person named that, which no ledger may
        know."""
        return self.search_id if self.named is None else shlex.quote(self.named)

    @property
    def exists(self) -> bool:
        """True if a search lies here; OSError where that cannot be determined."""
        return self.journal.exists()

    def attempt(self, trial: str, attempt: str) -> AttemptFolder:
        return AttemptFolder(self.path / "trials" / trial / attempt)


class DamagedFile(ExternalError, ValueError):
    """A file of ours with other content; the message names it."""

    def __init__(self, path: Path, why: object):
        super().__init__(f"{path} is damaged: {why}", f"put {path.name} back from a copy of its folder, or remove it")
        self.why = str(why)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write `data` as JSON, atomically by a rename; ValueError for NaN."""
    write_bytes(path, _json_bytes(data))


def _json_bytes(data: Mapping[str, Any]) -> bytes:
    """A line for each name, for people; json's own indentation is slow where there are many values."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in data.items())
    return "{{\n{}\n}}\n".format(",\n".join(lines)).encode("utf-8")


def write_text(path: Path, text: str) -> None:
    """Write `text` atomically by a rename, 0600: a reader sees the old file or the new one, also after a power loss."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` as `write_text` does."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where its file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems refuse to sync a folder; they order renames themselves.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, most_bytes: int = MAX_BYTES) -> dict[str, Any] | None:
    """The JSON object at `path`; None where there is no file.

    DamagedFile for anything else: JSON of another form or beyond the bounds of `parse_json`, what is not a plain file.
    """
    try:
        data = parse_json(read_plain(path, most_bytes))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedFile(path, error) from error
    if not isinstance(data, dict):
        raise DamagedFile(path, f"it holds {type(data).__name__}, not a JSON object")
    return data


def read_as(kind: type[T], path: Path, schema: str | None = None) -> T | None:
    """The dataclass whose fields this file has beside this schema, by default the class's own; None where there is no
    file. DamagedFile for anything else."""
    if (data := read_json(path)) is None:
        return None
    try:
        if schema is not None:
            require_schema(data, schema)
            del data["schema"]
        return decode(kind, data)
    except ValueError as error:
        raise DamagedFile(path, error) from error


def json_line(one: JsonObject) -> bytes:
    """One whole line; ValueError for not-a-number."""
    return json.dumps(one.to_json(), allow_nan=False).encode() + b"\n"


def read_lines(kind: type[T], path: Path, most_bytes: int = MAX_BYTES) -> list[T]:
    """The objects that a file has so far, one a line; a last line still being written is left out, a missing file is
    empty.

    ValueError for a complete line that is none, and for what is not a regular file of at most so many bytes.
    """
    try:
        written = read_plain(path, most_bytes)
    except FileNotFoundError:
        return []
    whole_lines = written[: written.rfind(b"\n") + 1].splitlines()
    try:
        return [decode(kind, parse_json(line)) for line in whole_lines]
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def links_outside(path: Path, root: Path) -> bool:
    """True if a link on the way to `path` leads outside of the folder `root`."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
