"""Settings: environment variables, launch options and the software that a search varies beside the layout, and their
canonical text. Standard library only.

The text is what layouts, tables and records have: words as a shell would quote them, sorted. `env.NAME=VALUE` sets a
variable, `-env.NAME` removes it from what the ranks inherit, `launch.OPTION=WORD` is an option of the launch line,
`software.python=PATH` or `software.image=IMAGE` the software of an experiment's other side.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

ENV = "env."
LAUNCH = "launch."
SOFTWARE = "software."
PYTHON, IMAGE = "python", "image"
_REMOVED = "-"
_ACTED_ON = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that a terminal would act on, which a search file may not have either."""
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

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
    """Variables, launch options and software of a trial, sorted by name; a variable that is None is not set.

    `software` is empty for the search's own, else the interpreter (`python`) or the container's image (`image`).
    """

    env: Mapping[str, str | None] = field(default_factory=dict)
    launch: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Settings of a text; ValueError unless it is canonical."""
        env: dict[str, str | None] = {}
        launch: dict[str, str] = {}
        software: dict[str, str] = {}
        for word in shlex.split(text):
            name, has_value, value = word.partition("=")
            if name.startswith(_REMOVED + ENV) and not has_value:
                env[name.removeprefix(_REMOVED + ENV)] = None
            elif name.startswith(ENV) and has_value:
                env[name.removeprefix(ENV)] = value
            elif name.startswith(LAUNCH) and has_value:
                launch[name.removeprefix(LAUNCH)] = value
            elif name in (SOFTWARE + PYTHON, SOFTWARE + IMAGE) and has_value:
                software[name.removeprefix(SOFTWARE)] = value
            else:
                known = "env.NAME=VALUE, -env.NAME, launch.OPTION=WORD, software.python=PATH nor software.image=IMAGE"
                raise ValueError(f"{word!r} is neither {known}")
        for name in (name for name in env if not VARIABLE_NAME.fullmatch(name)):
            raise ValueError(f"{name!r} is no name of a variable")
        for name in (name for name in launch if name not in LAUNCH_OPTIONS):
            raise ValueError(f"{name!r} is none of {', '.join(LAUNCH_OPTIONS)}")
        if any(unicodedata.category(character) in _ACTED_ON for character in text):
            raise ValueError("text has only printable characters")
        found = cls(env, launch, software)
        if found.text != text:
            raise ValueError(f"written as {found.text!r}, sorted and quoted as a shell needs it")
        return found

    @property
    def text(self) -> str:
        """Canonical text; empty without settings."""
        env = [_REMOVED + ENV + name if value is None else f"{ENV}{name}={value}" for name, value in _sorted(self.env)]
        others = [
            f"{prefix}{name}={value}"
            for prefix, values in ((LAUNCH, self.launch), (SOFTWARE, self.software))
            for name, value in _sorted(values)
        ]
        return shlex.join([*env, *others])

    @property
    def by_axis(self) -> dict[str, str | None]:
        """Values by the name of their axis: `env.NAME`, `launch.OPTION`, `software.python` or `software.image`."""
        parts: tuple[tuple[str, SettingValues], ...] = ((ENV, self.env), (LAUNCH, self.launch))
        return {
            prefix + name: value
            for prefix, values in (*parts, (SOFTWARE, self.software))
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


def _sorted(values: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
    return sorted(values.items())


@lru_cache(maxsize=100_000)
def settings_of(text: str) -> Settings:
    """`Settings.parse`, for the few texts that many layouts have."""
    return Settings.parse(text)


def combinations(env: Mapping[str, Sequence[str | None]], launch: Mapping[str, Sequence[str | None]]) -> Iterable[str]:
    """Text of every combination of these values; a launch option that is None is the launcher's own."""
    for chosen in product(*env.values(), *launch.values()):
        variables = dict(zip(env, chosen, strict=False))
        options = zip(launch, chosen[len(env) :], strict=True)
        yield Settings(variables, {name: value for name, value in options if value is not None}).text


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
    return f"{own}={value}"


def as_numbers(values: Sequence[str | None]) -> list[int | str | None]:
    """Values of an axis as whole numbers where all that are set are such, else as they are."""
    if all(value is None or (value.isdecimal() and value.isascii() and len(value) < 16) for value in values):
        return [None if value is None else int(value) for value in values]
    return list(values)
