"""Slurm's options that an import reads, and the parser of `#SBATCH` lines and of srun's command line."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Use(Enum):
    """Where an option goes in the search file: a size of the cluster, a key of its own, or a part of another."""

    SIZE = "cluster"
    KEY = "launcher.slurm"
    CONTAINER = "launcher.slurm.container"
    DIRECTIVE = "launcher.slurm.directives"
    STEP = "launcher.slurm.launch.srun"


_TABLE = {
    Use.SIZE: "nodes/N ntasks/n ntasks-per-node/tasks-per-node gpus/G gpus-per-node gpus-per-task gres"
    " cpus-per-task/c cpus-per-gpu",
    Use.KEY: "account/A partition/p qos/q reservation constraint/C network licenses/L comment mem exclusive exclude/x"
    " nodelist/w threads-per-core segment",
    Use.CONTAINER: "container-image container-mounts container-writable",
    Use.DIRECTIVE: "core-spec/S cpu-freq gpu-freq gres-flags hint mem-per-cpu mem-per-gpu mincpus switches thread-spec"
    " wckey",
    Use.STEP: "cpu-bind/cpu_bind mem-bind gpu-bind accel-bind mpi unbuffered/u",
}
"""Options that are read, each with its letter or other name behind a slash. All others are named in a note."""
_ROWS = [(name.split("/"), use) for use, names in _TABLE.items() for name in names.split()]
OPTIONS: Mapping[str, Use] = {names[0]: use for names, use in _ROWS}
_NAME_OF = {written: names[0] for names, _ in _ROWS for written in names}
_WITHOUT_VALUE = frozenset(
    (
        *("exclusive", "unbuffered", "label", "exact", "overlap", "overcommit", "oversubscribe", "contiguous", "quiet"),
        *("verbose", "kill-on-bad-exit", "no-kill", "preserve-env", "pty", "propagate", "multi-prog", "use-min-nodes"),
        *("container-writable", "container-readonly", "container-mount-home", "container-remap-root", *"lOsQvuXKkIZE"),
    )
)
"""Options and letters whose value, if they take one, is behind an equals sign."""
_LONGEST_VALUE = 4096
"""Characters of a value; launcher.slurm takes no longer ones."""


@dataclass
class Given:
    """Options with their values and where they stand, by name; of two the last one counts. `unread` names the others,
    `is_job` is true for a script with `#SBATCH` lines."""

    values: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    is_job: bool = False

    def add(self, rest: deque[str], program: str, line: int) -> None:
        """Move the options from the start of these words, which stand in this line, to those that are given. Of a job's
        srun those with a key are unread: it may choose a part of the job."""
        for written, value in options_of(rest):
            name = _NAME_OF.get(written, written)
            is_of_part = program == "srun" and self.is_job and OPTIONS.get(name) is Use.KEY
            if name in OPTIONS and not is_of_part and len(value) <= _LONGEST_VALUE:
                self.values[name] = value
                self.origins[name] = f"{program} --{name} (line {line})"
            else:
                self.unread.append(hyphened(name) + (" of srun" if program == "srun" else ""))


def read_directives(text: str) -> Given:
    """The options of the `#SBATCH` lines before the script's first command; of several components the first one's."""
    given = Given()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith("#SBATCH"):
            if line.strip() and not line.lstrip().startswith("#"):
                break
            continue
        given.is_job = True
        rest = deque(_words(line.removeprefix("#SBATCH")))
        if rest and rest[0].lower() in ("hetjob", "packjob"):
            given.unread.append(f"the job's components from line {number} on")
            break
        given.add(rest, "#SBATCH", number)
        while rest:
            given.unread.append(f"words of line {number}")
            rest.popleft()
            given.add(rest, "#SBATCH", number)
    return given


def _words(line: str) -> list[str]:
    """The line's words; with their quotes where one is not closed, which no option takes."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def options_of(rest: deque[str], flags: Collection[str] = _WITHOUT_VALUE) -> Iterator[tuple[str, str]]:
    """Each option at the start of these words, without hyphens, and its value, as getopt takes them off. The next word
    is no value of these flags."""
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.popleft()
        if word.startswith("--"):
            name, attached, value = word[2:].partition("=")
        else:
            name, attached, value = word[1], word[2:], word[2:].removeprefix("=")
            if name in flags and attached:
                rest.appendleft(f"-{attached}")
                value = ""
        takes_next = not attached and name not in flags and not name.startswith("no-")
        yield name, rest.popleft() if takes_next and rest and not rest[0].startswith("-") else value


def hyphened(name: str) -> str:
    """The option as it is written."""
    return f"-{name}" if len(name) == 1 else f"--{name:.40}"


def listed(names: Iterable[str]) -> str:
    """The names between commas, for a note: the first twenty, and how many more there are."""
    unique = [*dict.fromkeys(names)]
    return ", ".join(unique[:20]) + (f" and {len(unique) - 20} more" if len(unique) > 20 else "")
