"""Conversion of JSON lines to a token file: the fields of each line are joined and tokenized."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from search_spaces.errors import InputError, Problem, format_value
from trials.data.token_file import TokenHeader
from trials.data.tokenizer import Tokenizer
from trials.data.writer import TokenWriter
from trials.trial import utc_text

STANDARD_INPUT = "-"
LONGEST_LINE_BYTES = 64 * 2**20
_LONGEST_NAMES = 500
_TEXTS_AT_ONCE = 512
_LINE_RULE = "each line is a JSON object with text under {fields}, not empty under all of them"
_LINE_FIX = "correct the line, or leave such lines out with --skip-bad"


@dataclass(frozen=True)
class Preparation:
    """Input and options of a conversion. `inputs` are paths, or `-` for standard input; `limit` counts texts.

    The fields of a line are joined in the order given here; empty ones are left out.
    """

    inputs: tuple[str, ...]
    fields: tuple[str, ...]
    separator: str = "\n"
    append_eos: bool = False
    limit: int | None = None
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if not all(self.fields) or not self.fields or len(set(self.fields)) < len(self.fields):
            rule = "one or more names with commas between, each once"
            raise _bad_option("--fields", ",".join(self.fields), rule, "for example --fields instruction,response")
        if len("".join((*self.fields, self.separator))) > _LONGEST_NAMES:
            rule = f"--fields and --separator have at most {_LONGEST_NAMES} characters together"
            raise _bad_option("--fields", ",".join(self.fields), rule, "name fewer fields, or a shorter separator")
        if self.inputs.count(STANDARD_INPUT) > 1:
            raise _bad_option("INPUT", STANDARD_INPUT, "standard input can be read once", "write - once")


@dataclass(frozen=True)
class Progress:
    """Progress of a conversion: texts and tokens written, lines left out, and bytes read of all inputs."""

    num_documents: int = 0
    num_tokens: int = 0
    num_skipped: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class ProgressListener:
    """Callbacks for progress every few hundred texts, and for each line that is left out."""

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_skipped: Callable[[Problem], None] = lambda problem: None


def prepare(
    wanted: Preparation, tokenizer: Tokenizer, out: Path, watcher: ProgressListener = ProgressListener()
) -> tuple[TokenHeader, Progress]:
    """Write the token file `out`, completely or not at all; returns its header and the final progress.

    InputError for inputs that cannot be read, a bad line unless such are skipped, and no text at all. ExternalError
    where `out` cannot be written completely.
    """
    _require_output(wanted, out)
    end = _end_ids(wanted, tokenizer)
    reader = _Reader(wanted, watcher)
    with TokenWriter(out, tokenizer.vocab_size) as writer:
        texts = islice(reader.texts(), wanted.limit)
        while several := list(islice(texts, _TEXTS_AT_ONCE)):
            for ids in tokenizer.encode(several):
                writer.append(itertools.chain(ids, end))
            watcher.on_progress(reader.progress(writer.num_tokens))
        progress = reader.progress(writer.num_tokens)
        if progress.num_tokens == 0:
            found = f"{progress.num_documents} texts, {progress.num_skipped} lines left out"
            fix = "name inputs that hold text, or correct --fields"
            raise InputError.of("no_text", f"the input has no tokens: {found}", key="INPUT", fix=fix)
        return writer.finish(_made(wanted, tokenizer, progress)), progress


class _Reader:
    """Reads the inputs one after another, and counts what it reads and leaves out."""

    def __init__(self, wanted: Preparation, watcher: ProgressListener):
        self._wanted = wanted
        self._watcher = watcher
        self._num_documents = 0
        self._num_skipped = 0
        self._bytes_read = 0

    def progress(self, num_tokens: int) -> Progress:
        return Progress(self._num_documents, num_tokens, self._num_skipped, self._bytes_read)

    def texts(self) -> Iterator[str]:
        for name in self._wanted.inputs:
            with _opened(name) as stream:
                for number, raw in _lines(stream):
                    self._bytes_read += len(raw)
                    if (text := self._text(name, number, raw)) is not None:
                        self._num_documents += 1
                        yield text

    def _text(self, name: str, number: int, raw: bytes) -> str | None:
        """The text of a line; None where the line is left out."""
        try:
            return text_of(raw, self._wanted.fields, self._wanted.separator)
        except ValueError as error:
            rule = _LINE_RULE.format(fields=", ".join(self._wanted.fields))
            file = "standard input" if name == STANDARD_INPUT else name
            problem = Problem("bad_line", str(error), rule=rule, fix=_LINE_FIX, file=file, line=number)
            if not self._wanted.skip_bad:
                raise InputError(problem) from error
            self._num_skipped += 1
            self._watcher.on_skipped(problem)
            return None


def text_of(raw: bytes, fields: tuple[str, ...], separator: str) -> str:
    """The joined fields of one line of JSON; ValueError with the fault."""
    if len(raw) > LONGEST_LINE_BYTES:
        raise ValueError(f"the line has more than {LONGEST_LINE_BYTES} bytes")
    if not raw.strip():
        raise ValueError("the line is empty")
    data = _json_object(raw, fields)
    texts = [_field(data, name) for name in fields]
    text = separator.join(text for text in texts if text)
    if not text:
        raise ValueError(f"{', '.join(fields)}: empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair: not Unicode text") from error
    return text


def _json_object(raw: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
    try:
        data = json.loads(raw.decode(), object_pairs_hook=partial(_each_once, fields))
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{raw[error.start]:02x} at {error.start + 1} is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"the line is not a JSON object but {format_value(data):.40}")
    return data


def _each_once(fields: tuple[str, ...], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """ValueError where a field appears twice, which is ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        if twice := [name for name in fields if counts[name] > 1]:
            raise ValueError(f"the key {twice[0]!r} appears twice")
    return found


def _field(data: dict[str, Any], name: str) -> str:
    if name not in data:
        raise ValueError(f"{name}: missing")
    if not isinstance(data[name], str):
        raise ValueError(f"{name}: {format_value(data[name]):.40} is not text")
    return data[name]


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with _opened_file(name) as stream:
        yield stream


def _opened_file(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        fix = "name a file of JSON lines, or - for standard input"
        raise InputError.of("file", f"{name} cannot be read: {why}", key="INPUT", value=name, fix=fix) from error


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Each line with its number; of one that is too long only its beginning."""
    for number in itertools.count(1):
        if not (raw := stream.readline(LONGEST_LINE_BYTES + 1)):
            return
        yield number, raw
        while len(raw) > LONGEST_LINE_BYTES and not raw.endswith(b"\n"):
            raw = stream.readline(LONGEST_LINE_BYTES + 1)


def _require_output(wanted: Preparation, out: Path) -> None:
    """InputError where a file exists at `out`: nothing is overwritten, least of all an input."""
    try:
        is_there = out.exists()
        is_input = is_there and any(out.samefile(name) for name in wanted.inputs if Path(name).exists())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError.of("output", f"{out}: {why}", key="--out", value=str(out), fix="use a new file") from error
    if is_there or out.is_symlink():
        what = "is one of the inputs" if is_input else "exists"
        raise InputError.of("output", f"{out} {what}", key="--out", value=str(out), fix="use a new file")


def _end_ids(wanted: Preparation, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids appended to every text."""
    if not wanted.append_eos:
        return ()
    if tokenizer.end_of_text is None:
        raise InputError.of(
            "tokenizer",
            f"{tokenizer.name} has no known end-of-text token",
            key="--append-eos",
            fix="name the token with --eos-token",
        )
    return (tokenizer.end_of_text,)


def _made(wanted: Preparation, tokenizer: Tokenizer, progress: Progress) -> dict[str, Any]:
    """The header's record of how the file was made."""
    return {
        "created_at": utc_text(),
        "tokenizer": tokenizer.name[:100],
        "tokenizer_checksum": tokenizer.checksum,
        "fields": list(wanted.fields),
        "separator": wanted.separator,
        "eos": tokenizer.end_of_text if wanted.append_eos else None,
        "num_inputs": len(wanted.inputs),
        "num_skipped": progress.num_skipped,
    }


def _bad_option(key: str, value: str, rule: str, fix: str) -> InputError:
    return InputError.of("usage", f"is {value!r}", key=key, value=value, rule=rule, fix=fix)
