"""Files that a command writes where its user says."""

from __future__ import annotations

from pathlib import Path

from search_spaces.errors import InputError


def write_new(path: Path, content: str | bytes, option: str) -> None:
    """Write a new file, named by `option`: completely or not at all. Raises InputError if it exists or cannot be
    written."""
    whole = content.encode("utf-8") if isinstance(content, str) else content
    is_ours = False
    try:
        with path.open("xb") as stream:
            is_ours = True
            stream.write(whole)
    except BaseException as error:
        if is_ours:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        message, fix = f"{path}: {error.strerror}", "use a new file"
        raise InputError.of("output", message, key=option, value=str(path), fix=fix) from error
