"""Parsing, running and comparing of a page's commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.console import Answered, Command, assert_as_shown, commands_of, is_as_shown, run

PAGE = """\
<!-- tested -->
```console
$ first one
it says this
$ second \\
    goes on
$ cat > there <<'END'
$ no command
END
and this
```

```console
$ looked at only
```

<!-- tested: the last one leaves with 3 or 4 -->
```console
$ third
$ fourth
```
"""


def test_the_commands_of_marked_blocks_are_found_with_what_they_show():
    assert commands_of(PAGE) == [
        Command("first one", ("it says this",)),
        Command("second \\\n    goes on"),
        Command("cat > there <<'END'\n$ no command\nEND", ("and this",)),
        Command("third"),
        Command("fourth", codes=(3, 4)),
    ]


def test_all_blocks_are_found_where_that_is_asked_for():
    assert "looked at only" in [command.typed for command in commands_of(PAGE, marked=False)]


def answered(place: Path, *commands: Command) -> list[tuple[str, int]]:
    return [(answer.printed, answer.code) for answer in run(list(commands), place, os.environ, timeout_s=8)]


def test_commands_share_a_shell_and_a_folder(tmp_path):
    commands = [Command("name=ada; echo $name > file"), Command("cat file; echo $name >&2")]
    assert answered(tmp_path, *commands) == [("", 0), ("ada\nada\n", 0)]


def test_nothing_follows_a_command_that_leaves_with_another_code(tmp_path):
    commands = [Command("(exit 8)", codes=(8, 9)), Command("false | cat"), Command("echo never")]
    answers = run(commands, tmp_path, os.environ, timeout_s=8)
    assert [answer.code for answer in answers] == [8, 1]
    with pytest.raises(AssertionError, match="left with 1"):
        assert_as_shown(commands, answers)


@pytest.mark.slow
def test_commands_that_take_too_long_are_ended_and_said(tmp_path):
    with pytest.raises(AssertionError, match="begun"):
        run([Command("echo begun; sleep 60")], tmp_path, os.environ, timeout_s=5)


def test_a_command_that_never_ran_is_no_success():
    ran, left = Command("true"), Command("echo")
    with pytest.raises(AssertionError, match="never ran: echo"):
        assert_as_shown([ran, left], [Answered(ran, "", 0)])


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ((), "whatever"),
        (("t0002  3,488 ± 638 tokens/s",), "t0017 12 ± 1.5 tokens/s\n"),
        (
            ("search example-ftonpd in /home/ada/runs/example-ftonpd",),
            "search example-77abcd in /tmp/x/example-77abcd\n",
        ),
        (("a", "...", "d"), "a\nb\nc\nd\n"),
        (("a", "..."), "a\n"),
        (("best: t0001, ... tokens/s...",), "best: t0002, n1.tp2, 3 tokens/s; and so on\n"),
        (("a", "", "b"), "\na\n\nb\n\n"),
    ],
)
def test_what_may_differ_is_shown_all_the_same(shown, printed):
    assert is_as_shown(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (("a",), ""),
        (("a",), "a\nb\n"),
        (("a", "b"), "a\n"),
        (("3 layouts",), "3 trials\n"),
        (("33 layouts can be tried on 4 ranks",), "21 layouts can be tried on 4 ranks\n"),
        (("  and 30 more (--top N lists N)",), "  and 3 more (--top N lists N)\n"),
        (("a ... c",), "a b\n"),
        (("runs/example",), "runs/other\n"),
    ],
)
def test_what_is_something_else_is_not(shown, printed):
    assert not is_as_shown(shown, printed)
