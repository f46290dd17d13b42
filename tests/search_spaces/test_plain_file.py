"""Regular files are read; whatever would block, has no end or leads elsewhere is refused at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from search_spaces.plain_file import open_named, read_named, read_plain, read_referenced


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def link_to(target: str | Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.fixture
def terminal() -> Iterator[str]:
    """A terminal without input."""
    ends = os.openpty()
    yield os.ttyname(ends[1])
    for end in ends:
        os.close(end)


@pytest.mark.security("paths")
@pytest.mark.bad_input(51)
@pytest.mark.parametrize("make", [pipe, listening_socket, link_to("/dev/zero"), link_to("it"), Path.mkdir])
def test_what_is_no_plain_file_is_refused_without_waiting_for_it(tmp_path, make):
    make(tmp_path / "it")
    with pytest.raises(ValueError, match="not a regular file"):
        read_plain(tmp_path / "it")
    with pytest.raises(OSError, match=r"not a regular file|Is a directory|Too many levels") as refused:
        read_named(tmp_path / "it")
    assert refused.value.strerror


@pytest.mark.bad_input(51)
def test_a_terminal_on_which_nobody_types_is_not_waited_for(terminal):
    with pytest.raises(OSError, match="not a regular file"):
        open_named(Path(terminal))
    with pytest.raises(ValueError, match="not a regular file"):
        read_plain(Path(terminal))


@pytest.mark.security("paths")
def test_a_link_to_a_file_is_followed_only_where_a_person_named_it(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_named(tmp_path / "link") == read_plain(tmp_path / "file") == b"x"
    with pytest.raises(ValueError, match="not a regular file"):
        read_plain(tmp_path / "link")


@pytest.mark.bad_input(51)
@pytest.mark.parametrize("size", [0, 3, 4])
def test_a_file_may_have_as_many_bytes_as_its_reader_takes_and_no_more(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    if size <= 3:
        assert read_named(path, 3) == read_plain(path, 3) == b"x" * size
        return
    with pytest.raises(OSError, match="larger than the limit of 3 bytes"):
        read_named(path, 3)
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_plain(path, 3)


def test_a_file_that_is_not_there_or_has_no_possible_name_is_said_so(tmp_path):
    for path in (tmp_path / "absent", tmp_path / "a\0b"):
        for read in (read_named, read_plain):
            with pytest.raises((OSError, ValueError), match=r"No such file|null byte|not a regular file"):
                read(path)


def test_no_descriptor_is_left_open(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    with closing(open_named(tmp_path / "file")) as stream:
        free = stream.fileno()
    for read in (read_named, read_plain):
        with pytest.raises((OSError, ValueError), match="not a regular file"):
            read(tmp_path / "pipe")
    with open_named(tmp_path / "file") as stream:
        assert stream.fileno() == free


@pytest.mark.security("paths")
def test_a_file_that_another_file_names_is_no_pipe_and_none_that_the_kernel_makes_up(tmp_path):
    ends = os.pipe()
    (tmp_path / "file").write_bytes(b"x")
    for path in (Path(f"/dev/fd/{ends[0]}"), Path("/proc/self/environ"), Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            read_referenced(path)
    assert read_referenced(tmp_path / "file") == b"x"
    for end in ends:
        os.close(end)
