"""Slurm's host lists, such as `n[1-4,7],gpu[001-003]-ib[0-1],login`: expansion and compression. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, product

MAX_HOSTS = 100_000
"""Larger than any cluster: a longer list is a mistake and would only cost memory."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)


class HostListError(ValueError):
    """Not a host list, or a list of more than MAX_HOSTS names."""


def expand(text: str) -> tuple[str, ...]:
    """Return the names in the order given, () for blank text. Raises HostListError."""
    hosts: list[str] = []
    for entry in _entries(text) if text.strip() else ():
        hosts.extend(_expand_entry(entry, MAX_HOSTS - len(hosts)))
    return tuple(hosts)


def expand_all(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names in all of these lists, in the order given. Raises HostListError."""
    return expand(",".join(texts))


def compress(hosts: Iterable[str]) -> str:
    """Return a host list of the names, each once, sorted, with ranges in brackets; "" for none."""
    parts: list[tuple[tuple[str, str, int], int, str]] = []  # (what surrounds the number and its width), number, name
    plain: set[str] = set()
    for host in set(hosts):
        match = _NUMBERED.fullmatch(host)
        if match is None:
            plain.add(host)
        else:
            before, digits, after = match.groups()
            width = len(digits) if digits.startswith("0") and digits != "0" else 0
            parts.append(((before, after, width), int(digits), host))
    groups = groupby(sorted(parts), key=lambda part: part[0])
    return ",".join([*sorted(plain), *(_bracketed(key, [part[1:] for part in group]) for key, group in groups)])


def _entries(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    entries, depth, begin = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise HostListError(f"the brackets of {_short(text)} do not match")
        if character == "," and depth == 0:
            entries.append(text[begin:index])
            begin = index + 1
    if depth:
        raise HostListError(f"the brackets of {_short(text)} do not match")
    return [entry.strip() for entry in (*entries, text[begin:])]


def _expand_entry(entry: str, room: int) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", entry)  # text, ranges, text, ranges, ..., text
    choices, count = [], 1
    for index, piece in enumerate(pieces):
        options = _expand_ranges(piece, room) if index % 2 else [piece]
        count *= len(options)
        if count > room:
            raise HostListError(f"more than {MAX_HOSTS} hosts")
        choices.append(options)
    hosts = ["".join(chosen) for chosen in product(*choices)]
    if not _NAME.fullmatch(hosts[0]):
        raise HostListError(f"{_short(entry)} is not a host name")
    return hosts


def _expand_ranges(text: str, room: int) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise HostListError(f"[{_short(text)}] is not a list of numbers and ranges")
        low, high = match[1], match[2] or match[1]
        count = int(high) - int(low) + 1
        if count < 1:
            raise HostListError(f"the range {item} is descending")
        if len(numbers) + count > room:
            raise HostListError(f"more than {MAX_HOSTS} hosts")
        numbers.extend(f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
    return numbers


def _bracketed(key: tuple[str, str, int], members: list[tuple[int, str]]) -> str:
    """Return one entry for names that differ in their number alone."""
    if len(members) == 1:
        return members[0][1]
    before, after, width = key
    ranges = []
    for _, run in groupby(enumerate(sorted(number for number, _ in members)), key=lambda pair: pair[1] - pair[0]):
        numbers = [f"{number:0{width}d}" for _, number in run]
        ranges.append(numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return f"{before}[{','.join(ranges)}]{after}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
