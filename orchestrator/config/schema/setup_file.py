"""The shell file of `launcher.slurm.setup_file`, of which each job sources a copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.config.answer import AnswerPart
from orchestrator.config.schema.launcher import LauncherSection
from search_spaces.errors import InputError
from search_spaces.plain_file import read_named

MAX_SETUP_BYTES = 2**20


class SetupFile(AnswerPart):
    """The shell file that sets up each job."""

    path: str
    text: str

    @classmethod
    def of(cls, launcher: LauncherSection) -> SetupFile | None:
        """None if no job sources one. Raises InputError as setup_text does."""
        path = launcher.slurm.setup_file
        if path is None or not launcher.uses_slurm:
            return None
        return cls(path=path, text=setup_text(path))

    def lines(self) -> Iterator[str]:
        """The file as lines of text; the caller escapes control characters."""
        yield f"each job sources a copy of {self.path}:"
        yield from (f"  {line.expandtabs()}" for line in self.text.splitlines())


def setup_text(path: str) -> str:
    """Read the user's setup file; InputError where this machine cannot read it, or it is not text."""
    try:
        return read_named(Path(path), MAX_SETUP_BYTES).decode()
    except OSError as error:
        fix = "name a small file that this machine and the compute nodes see, and source the rest from there"
        raise _bad_setup(path, f"cannot be read: {error.strerror or error}", fix) from error
    except UnicodeDecodeError as error:
        raise _bad_setup(path, "is not text", "name a shell file") from error


def _bad_setup(path: str, message: str, fix: str) -> InputError:
    key = "launcher.slurm.setup_file"
    return InputError.of("setup_file", f"{path} {message}", rule=_RULE, fix=fix, key=key, value=path)


_RULE = "each job sources a copy of the setup file"
