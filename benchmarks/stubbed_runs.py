"""Launch scripts run by bash, with stubs in place of all programs: what they would start.

A stub records its arguments and does nothing else, apart from a few programs that only print, and stubs of srun and its
like, which run the text of `bash -c`. Redirections and builtins are real: run scripts that you trust, in a copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TIME_LIMIT_S = 10
_LARGEST_FILE = 2**20

_PRINTING = (
    "awk basename bc cat cut date dirname egrep env expr fold getopt grep head od paste printenv printf readlink"
    " realpath rev sed seq sort tail tac tr uname uniq wc xargs"
)
"""Programs that scripts compute with."""
_STUBBED = (
    "accelerate bash cp deepspeed docker ft_launcher mpiexec mpirun nohup numactl pdsh python python3 rm sh srun ssh"
    " stdbuf sudo time timeout torchrun"
)
"""Programs that other programs start, or that run others."""

_STUB = """#!{bash}
{{ printf '%s\\0' {name} "$@"; printf '\\n\\0'; }} >> {record}
"""
_RUNNER = (
    _STUB
    + """while [ $# -gt 0 ]; do
  case $1 in
    bash|sh|*/bash|*/sh) case $2 in -c|-*c) {bash} -c "$3"; exit 0;; esac;;
  esac
  shift
done
"""
)
"""Stub that also runs the text of a `bash -c` among its arguments."""
_RUNNERS = frozenset(
    ["srun", "mpirun", "mpiexec", "ssh", "pdsh", "timeout", "nohup", "time", "numactl", "sudo", "stdbuf"]
)
_BASH_STUB = (
    _STUB
    + """case $1 in
  -c|-*c) {bash} "$@";;
  -*) ;;
  *) [ -f "$1" ] && {bash} "$@";;
esac
"""
)
_MKDIR = """#!{bash}
for folder; do
  case $folder in -*|/*|*..*) ;; *) {mkdir} -p -- "$folder";; esac
done
"""
"""mkdir, for folders in the copy alone: a redirection to a missing folder would keep a command from being run."""
_UNKNOWN = """command_not_found_handle() {{ {{ printf '%s\\0' "$@"; printf '\\n\\0'; }} >> {record}; }}
"""
"""Read by bash before a script: a program without a stub does nothing either."""


@dataclass(frozen=True)
class Started:
    """Words of one command that a script started, the program's name first."""

    words: tuple[str, ...]

    @property
    def program(self) -> str:
        return self.words[0]


class StubbedBash:
    """Runs the scripts of one checkout in a copy of its text files, in `scratch`."""

    def __init__(self, checkout: Path, scratch: Path):
        self.copy = scratch / checkout.name
        self._stubs = scratch / "stubs"
        self._record = scratch / "record"
        self._home = scratch / "home"
        _copy_text_files(checkout, self.copy)
        self._write_stubs()

    def commands(self, script: Path, folder: Path) -> list[Started]:
        """The commands that this script starts, in order, without any argument or variable set. Both paths are relative
        to the checkout; it runs in `folder`."""
        self._record.write_bytes(b"")
        self._run(self.copy / script, self.copy / folder)
        return list(_started(self._record.read_bytes()))

    def _run(self, path: Path, folder: Path) -> None:
        process = subprocess.Popen(
            [_real("bash"), str(path)],
            cwd=folder,
            env={
                "PATH": str(self._stubs),
                "HOME": str(self._home),
                "USER": "user",
                "LANG": "C.UTF-8",
                "BASH_ENV": str(self._stubs / "unknown.env"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIME_LIMIT_S)
        finally:
            _end_group(process)

    def _write_stubs(self) -> None:
        for folder in (self._stubs, self._home):
            folder.mkdir(parents=True, exist_ok=True)
        for name in _PRINTING.split():
            if found := shutil.which(name):
                (self._stubs / name).symlink_to(found)
        for name in _STUBBED.split():
            text = _BASH_STUB if name in ("bash", "sh") else _RUNNER if name in _RUNNERS else _STUB
            self._write(name, text)
        self._write("mkdir", _MKDIR)
        self._write("unknown.env", _UNKNOWN)

    def _write(self, name: str, text: str) -> None:
        stub = self._stubs / name
        stub.write_text(text.format(bash=_real("bash"), mkdir=_real("mkdir"), name=name, record=self._record))
        stub.chmod(0o755)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the script and what it left in the background."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _real(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(name)
    return found


def _started(record: bytes) -> Iterator[Started]:
    for part in record.decode(errors="replace").split("\0\n\0"):
        if (words := part.split("\0")) and words[0]:
            yield Started(tuple(words))


def _copy_text_files(checkout: Path, copy: Path) -> None:
    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name == ".git" or _is_large_or_link(Path(folder) / name)]

    shutil.copytree(checkout, copy, ignore=ignored)


def _is_large_or_link(path: Path) -> bool:
    return path.is_symlink() or (path.is_file() and path.stat().st_size > _LARGEST_FILE)
