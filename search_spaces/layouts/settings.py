"""Settings: environment variables, launch options, options of the trainer and the software that a search varies beside
the layout, and their canonical text. Standard library only.

The text is what layouts, tables and records have: words as a shell would quote them, sorted. `env.NAME=VALUE` sets a
variable, `-env.NAME` removes it from what the ranks inherit, `launch.OPTION=WORD` is an option of the launch line,
`options.NAME=VALUE` one of the trainer, `software.python=PATH` or `software.image=IMAGE` the software of an
experiment's other side.
"""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any

ENV, LAUNCH, OPTIONS, SOFTWARE = _PREFIXES = ("env.", "launch.", "options.", "software.")
"""Beginnings of the names of `Settings.by_axis`, each a field of Settings and a point."""
PYTHON, IMAGE = "python", "image"
_REMOVED = "-"
_ACTED_ON = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that a terminal would act on, which a search file may not have either."""
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
OPTION_NAME = re.compile(r"(--)?[A-Za-z_][A-Za-z0-9_.-]{0,127}")
"""Name of a trainer's option: with hyphens in front one of its command line, else a key of its configuration."""
IS_GIVEN = ""
"""Value of an option that has none: a flag."""

SettingValues = Mapping[str, "str | None"]


@dataclass(frozen=True)
class LaunchOption:
    """Option of the launch line. `words` are its values; with none it takes any text without blanks.

    Slurm's launchers pass it to srun by the name with hyphens. `local_words` are the values that ranks started as plain
    processes can have.
    """

    description: str
    words: tuple[str, ...] = ()
    local_words: tuple[str, ...] = ()


LAUNCH_OPTIONS: Mapping[str, LaunchOption] = {
    "cpu_bind": LaunchOption(
        "Cores of a rank: all of its node's (none), its share of them (cores), or as srun --cpu-bind.",
        ("none", "threads", "cores", "sockets", "ldoms", "rank"),
        ("none", "cores"),
    ),
    "mem_bind": LaunchOption("Memory of a rank, as srun --mem-bind.", ("none", "local", "rank")),
    "gpu_bind": LaunchOption("GPUs of a rank, as srun --gpu-bind.", ("none", "closest", "single:1")),
    "distribution": LaunchOption(
        "Ranks over nodes in blocks, and over a node's sockets as named, as srun --distribution.",
        ("block:block", "block:cyclic", "block:fcyclic"),
    ),
    "hint": LaunchOption("Hardware threads, as srun --hint.", ("multithread", "nomultithread")),
    "mpi": LaunchOption("Process manager plug-in, as srun --mpi.", ("none", "pmi2", "pmix")),
    "network": LaunchOption("Network options of the site, as srun --network."),
}


@dataclass(frozen=True)
class Settings:
    """Variables, launch options, trainer's options and software of a trial; a variable that is None is not set.

    `software` is empty for the search's own, else the interpreter (`python`) or the container's image (`image`).
    """

    env: Mapping[str, str | None] = field(default_factory=dict)
    launch: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_axes(cls, values: SettingValues) -> Settings:
        """The inverse of `by_axis`; only a variable may be None."""
        found: dict[str, dict[str, Any]] = {prefix: {} for prefix in _PREFIXES}
        for name, value in values.items():
            prefix = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
            found[prefix][name.removeprefix(prefix)] = value
        return cls(*found.values())

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Settings of a text; ValueError unless it is canonical."""
        values: dict[str, str | None] = {}
        for word in shlex.split(text):
            name, has_value, value = word.partition("=")
            is_removed = name.startswith(_REMOVED + ENV) and not has_value
            if not (is_removed or (has_value and name.startswith(_PREFIXES))):
                raise ValueError(f"{word!r} is neither {_KNOWN}")
            values[name.removeprefix(_REMOVED) if is_removed else name] = None if is_removed else value
        found = cls.of_axes(values)
        for names, is_known, what in (
            (found.env, VARIABLE_NAME.fullmatch, "no name of a variable"),
            (found.launch, LAUNCH_OPTIONS.get, f"none of {', '.join(LAUNCH_OPTIONS)}"),
            (found.options, OPTION_NAME.fullmatch, "no name of a trainer's option"),
            (found.software, (PYTHON, IMAGE).__contains__, f"neither {PYTHON} nor {IMAGE}"),
        ):
            for name in names:
                if not is_known(name):
                    raise ValueError(f"{name!r} is {what}")
        if any(unicodedata.category(character) in _ACTED_ON for character in text):
            raise ValueError("text has only printable characters")
        if found.text != text:
            raise ValueError(f"written as {found.text!r}, sorted and quoted as a shell needs it")
        return found

    @property
    def text(self) -> str:
        """Canonical text; empty without settings."""
        return shlex.join(
            _REMOVED + name if value is None else f"{name}={value}" for name, value in self.by_axis.items()
        )

    @property
    def by_axis(self) -> dict[str, str | None]:
        """Values by the name of their axis: `env.NAME`, `launch.OPTION`, `options.NAME`, `software.python` or
        `software.image`."""
        parts = (self.env, self.launch, self.options, self.software)
        return {
            prefix + name: value
            for prefix, values in zip(_PREFIXES, parts, strict=True)
            for name, value in _sorted(values)
        }

    @property
    def given_env(self) -> dict[str, str]:
        """Variables that are set."""
        return {name: value for name, value in _sorted(self.env) if value is not None}

    @property
    def removed_env(self) -> tuple[str, ...]:
        """Variables that are not set, whatever the ranks would inherit."""
        return tuple(name for name, value in _sorted(self.env) if value is None)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command before another one that then has these variables: env(1); empty without variables."""
        if not self.env:
            return ()
        removed = (word for name in self.removed_env for word in ("-u", name))
        return ("env", *removed, *(f"{name}={value}" for name, value in self.given_env.items()))

    @property
    def srun_options(self) -> tuple[str, ...]:
        """The launch options as srun takes them."""
        return tuple(f"--{name.replace('_', '-')}={value}" for name, value in _sorted(self.launch))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The trainer's options as words of its command line: `--name=value`, `--name a b` for several words, `--name`
        for a flag."""
        return tuple(
            word
            for name, value in _sorted(self.options)
            if name.startswith("--")
            for word in _words_of_option(name, value or IS_GIVEN)
        )

    @property
    def keys(self) -> dict[str, Any]:
        """The trainer's options that are keys of its configuration, dotted: numbers, true and false as such."""
        return {name: _plain(value or "") for name, value in _sorted(self.options) if not name.startswith("--")}


_KNOWN = (
    "env.NAME=VALUE, -env.NAME, launch.OPTION=WORD, options.NAME=VALUE, software.python=PATH nor software.image=IMAGE"
)


def _words_of_option(name: str, value: str) -> list[str]:
    words = shlex.split(value)
    return [f"{name}={words[0]}"] if len(words) == 1 else [name, *words]


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _sorted(values: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
    return sorted(values.items())


@lru_cache(maxsize=100_000)
def settings_of(text: str) -> Settings:
    """`Settings.parse`, for the few texts that many layouts have."""
    return Settings.parse(text)


def combinations(axes: Mapping[str, Sequence[str | None]]) -> Iterable[str]:
    """Text of every combination of these values, by the names of `Settings.by_axis`."""
    for chosen in product(*axes.values()):
        yield Settings.of_axes(without_absent(dict(zip(axes, chosen, strict=True)))).text


def without_absent(values: SettingValues) -> dict[str, str | None]:
    """These values but for options that are None: the launcher's or the trainer's own."""
    return {name: value for name, value in values.items() if value is not None or name.startswith(ENV)}


def setting_axes(texts: Collection[str]) -> dict[str, list[str | None]]:
    """Axes in which these texts differ, each with its value in every text; None where it is not set."""
    found = [settings_of(text).by_axis for text in texts]
    names = sorted({name for values in found for name in values})
    columns = {name: [values.get(name) for values in found] for name in names}
    return {name: column for name, column in columns.items() if len({*column}) > 1}


def described(name: str, value: str | None) -> str:
    """An axis of `setting_axes` and its value for a reader: `OMP_NUM_THREADS=2`, `NCCL_ALGO unset`."""
    _, _, own = name.partition(".")
    if value is None:
        return f"{own} unset" if name.startswith(ENV) else f"{own} default"
    return own if value == IS_GIVEN and name.startswith(OPTIONS) else f"{own}={value}"


def as_numbers(values: Sequence[str | None]) -> list[int | str | None]:
    """Values of an axis as whole numbers where all that are set are such, else as they are."""
    if all(value is None or (value.isdecimal() and value.isascii() and len(value) < 16) for value in values):
        return [None if value is None else int(value) for value in values]
    return list(values)
