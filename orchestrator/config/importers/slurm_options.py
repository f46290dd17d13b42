"""Slurm's options that an import reads, and the parser of `#SBATCH` lines and of srun's command line."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from orchestrator.config.importers.bash.placeholders import masked, unmasked
from orchestrator.config.importers.bash.script import Word
from orchestrator.config.importers.settings import placeholder_doubt
from search_spaces.schema.validation import FILL_IN

SIZE, KEY, CONTAINER, DIRECTIVE, STEP = "cluster", "launcher.slurm", "container", "directives", "launch.srun"
_TABLE = {
    SIZE: "nodes/N ntasks/n ntasks-per-node/tasks-per-node gpus/G gpus-per-node gpus-per-task gres cpus-per-task/c",
    KEY: "account/A partition/p qos/q reservation constraint/C network licenses/L comment mem exclusive exclude/x"
    " nodelist/w threads-per-core segment time/t array/a requeue",
    CONTAINER: "container-image container-mounts container-writable",
    DIRECTIVE: "core-spec/S cpu-freq gpu-freq gres-flags hint mem-per-cpu mem-per-gpu mincpus switches thread-spec",
    STEP: "cpu-bind/cpu_bind mem-bind gpu-bind accel-bind mpi",
}
"""Options that are read by what they decide, each with its letter or other name behind a slash. All others are named in
a note."""
_ROWS = [(name.split("/"), use) for use, names in _TABLE.items() for name in names.split()]
_USE_OF = {names[0]: use for names, use in _ROWS}
_NAME_OF = {written: names[0] for names, _ in _ROWS for written in names}
_WITHOUT_VALUE = frozenset(
    (
        *("exclusive", "unbuffered", "label", "exact", "overlap", "overcommit", "oversubscribe", "contiguous", "quiet"),
        *("verbose", "kill-on-bad-exit", "no-kill", "preserve-env", "pty", "propagate", "multi-prog", "use-min-nodes"),
        *("container-writable", "container-readonly", "container-mount-home", "container-remap-root", "requeue"),
        *"lOsQvuXKkIZE",
    )
)
"""Options and letters whose value, if they take one, is behind an equals sign."""


@dataclass
class Options:
    """Options by name with their values, FILL_IN for one that is not known, and where they stand; of two the last one
    counts. `unread` names the others, `is_job` is true for a script with `#SBATCH` lines."""

    values: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    is_job: bool = False

    def add(self, rest: deque[Word], program: str) -> None:
        """Move the options from the start of these words to those that are given. Of a job's srun those of the job as a
        whole are unread: it may choose a part of the job."""
        line = rest[0].line if rest else 0
        for written, value in options_of(rest, _WITHOUT_VALUE):
            name = _NAME_OF.get(written, "")
            is_of_part = program == "srun" and self.is_job and _USE_OF.get(name) in (KEY, DIRECTIVE)
            if not name or is_of_part:
                self.unread.append(hyphened(written) + " of srun" * (program == "srun"))
            else:
                self.values[name], self.origins[name] = value, f"{program} --{name} (line {line})"
            if program == "srun" and name == "ntasks":
                self.values.pop("ntasks-per-node", None)

    def of_use(self, use: str) -> dict[str, str]:
        """The options that decide this part of the search file."""
        return {name: value for name, value in self.values.items() if _USE_OF[name] == use}

    def origin(self, *names: str) -> str:
        """Where these options stand, as far as they are given."""
        return ", ".join(self.origins[name] for name in names if name in self.values)


def read_directives(text: str) -> Options:
    """The options of the `#SBATCH` lines before the script's first command; of several components the first one's."""
    given = Options()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith("#SBATCH"):
            if line.strip() and not line.lstrip().startswith("#"):
                break
            continue
        given.is_job = True
        rest = deque(Word(word, number, doubt=placeholder_doubt(word)) for word in _split(line.removeprefix("#SBATCH")))
        if rest and rest[0].text.lower() in ("hetjob", "packjob"):
            given.unread.append(f"the job's components from line {number} on")
            break
        while rest:
            given.add(rest, "#SBATCH")
            if rest:
                rest.popleft()
                given.unread.append(f"words of line {number}")
    return given


def _split(line: str) -> list[str]:
    """The line's words; with their quotes where one is not closed, which no option takes."""
    text = masked(line)
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    return [*map(unmasked, words)]


def options_of(rest: deque[Word], flags: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each option at the start of these words, without hyphens, and its value, as getopt takes them off: FILL_IN for
    one that is not known. The next word is no value of these flags."""
    while rest and rest[0].text.startswith("-") and rest[0].text not in ("-", "--"):
        word = rest.popleft()
        if word.text.startswith("--"):
            name, attached, value = word.text[2:].partition("=")
        else:
            name, attached, value = word.text[1], word.text[2:], word.text[2:].removeprefix("=")
            if name in flags and attached:
                rest.appendleft(replace(word, text=f"-{attached}"))
                value = ""
        doubt = word.doubt
        takes_next = not attached and name not in flags and not name.startswith("no-")
        if takes_next and rest and not rest[0].text.startswith("-"):
            value, doubt = rest[0].text, doubt or rest[0].doubt
            rest.popleft()
        yield name, value if doubt is None else FILL_IN


def hyphened(name: str) -> str:
    """The option as it is written."""
    return f"-{name}" if len(name) == 1 else f"--{name:.40}"


def listed(names: Iterable[str]) -> str:
    """The names between commas, for a note: the first twenty, and how many more there are."""
    unique = [*dict.fromkeys(names)]
    return ", ".join(unique[:20]) + (f" and {len(unique) - 20} more" if len(unique) > 20 else "")
