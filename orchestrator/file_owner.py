"""Who we are to a file system: what it calls the owner of our files, which need not be what the kernel calls us."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def us_in(folder: Path) -> int:
    """Whose what we write there is, as a user's number. Raises OSError where we may not write.

    NFS may call all its users the same, or by the numbers of another machine. The file that tells has no name, or none
    any more, and nobody can put another in its place.
    """
    with tempfile.TemporaryFile(dir=folder, prefix=".owner.") as stream:
        return os.fstat(stream.fileno()).st_uid
