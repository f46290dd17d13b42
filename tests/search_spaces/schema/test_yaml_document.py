from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import InputError
from search_spaces.schema.unsafe_text import is_printable
from search_spaces.schema.yaml_document import (
    MAX_BYTES,
    Document,
    SourceLocation,
    parse_document,
    read_document,
    with_overrides,
)


def parsed(text: str | bytes) -> Document:
    raw = text if isinstance(text, bytes) else text.encode()
    return parse_document(raw, "search.yaml", Path("/searches"))


def the_problem(text: str | bytes):
    with pytest.raises(InputError) as caught:
        parsed(text)
    (problem,) = caught.value.problems
    return problem


def test_every_key_and_list_element_knows_its_line_and_what_is_not_there_that_of_what_is_around_it():
    document = parsed("a: 1\nb:\n  c:\n    - x\n    - y\n")
    assert document.data == {"a": 1, "b": {"c": ["x", "y"]}}
    assert document.location(("b", "c", 1)) == SourceLocation("search.yaml", 5)
    assert document.location(("b", "c")) == SourceLocation("search.yaml", 3)
    document = parsed("a: 1\nb:\n  c: 2\n")
    assert document.location(("b", "missing", "deeper")) == SourceLocation("search.yaml", 2)
    assert document.location(("elsewhere",)) == SourceLocation("search.yaml", None)


@pytest.mark.bad_input(2)
def test_the_same_key_twice_is_refused_with_both_lines():
    problem = the_problem("a:\n  b: 1\n  b: 2\n")
    assert (problem.code, problem.key, problem.line) == ("duplicate_key", "a.b", 3)
    assert "line 2" in problem.message


@pytest.mark.security("no_pickle")
@pytest.mark.bad_input(3)
@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['true']",
        "a: !!str 1",
        "a: !mine {}",
    ],
)
def test_tags_are_refused(text: str):
    problem = the_problem(text)
    assert problem.rule == "tags (!) are not supported"
    assert problem.line == 1


@pytest.mark.bad_input(4)
@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x", "a: &x 1", "a: *x", "a: &x {<<: *x}"])
def test_anchors_and_aliases_are_refused(text: str):
    assert the_problem(text).rule == "anchors (&) and aliases (*) are not supported"


@pytest.mark.bad_input(4)
def test_a_file_over_one_mebibyte_is_refused(tmp_path: Path):
    path = tmp_path / "large.yaml"
    path.write_bytes(b"a: " + b"x" * MAX_BYTES)
    with pytest.raises(InputError, match="larger than the limit of 1048576 bytes"):
        read_document(path)


@pytest.mark.bad_input(4)
def test_nesting_over_twenty_is_refused_and_twenty_is_read():
    assert "nested more than 20 deep" in the_problem("a: " + "[" * 20 + "]" * 20).message
    assert parsed("a: " + "[" * 19 + "]" * 19).data
    assert "nested more than 20 deep" in the_problem("a: " + "[" * 500_000).message


@pytest.mark.bad_input(5)
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (b"a: 1\nb:\n\tc: 2\n", 3, "tab"),
        (b"\xef\xbb\xbfa: 1\n", 1, "byte order mark"),
        (b"a: 1\nb: \xe9\n", 2, "not UTF-8"),
        (b"", 1, "empty"),
        (b"a: 1\nb: c: d\n", 2, "not YAML"),
        (b"a: 1\nb: \x1b[31m\n", 2, "control character"),
        (b"a: 1\n---\nb: 1\n", 2, "second document"),
        (b"- a\n- b\n", 1, "keys are expected"),
        (b"a: 1\n2: b\n", 2, "as a key"),
        (b"a: 1\n[x, y]: b\n", 2, "as a key"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: bytes, line: int, words: str):
    problem = the_problem(text)
    assert words in problem.message
    assert problem.line == line


@pytest.mark.bad_input(6)
def test_words_that_yaml_1_1_would_change_stay_text_and_numbers_and_switches_are_what_they_look_like():
    assert parsed("a: [yes, no, on, off, 08, 010, 0x10, 1_000, 12:30:00, 2026-11-20]").data["a"] == [
        *("yes", "no", "on", "off", "08", "010", "0x10", "1_000", "12:30:00", "2026-11-20")
    ]
    values = parsed("a: [1, -3, 1e3, 1.5, .5, true, False, null, ~, 0, '1', \"true\"]").data["a"]
    assert values == [1, -3, 1000.0, 1.5, 0.5, True, False, None, None, 0, "1", "true"]
    assert [type(v) for v in values[:4]] == [int, int, float, float]


@pytest.mark.bad_input(13)
@pytest.mark.parametrize("number", ["9" * 5000, "1e999999999"])
def test_a_monstrous_number_is_read_without_harm(number: str):
    assert parsed(f"a: {number}").data["a"] in (number, float("inf"))


@pytest.mark.bad_input(27)
@pytest.mark.parametrize(
    "line",
    [
        "mlflow_uri: https://me:hunter2@mlflow.example.org",
        "env: {DB_PASS: [hunter2]}",
        "arguments: [--lr, 1, --db-password, hunter2]",
        "note: AKIAIOSFODNN7EXAMPLE",
        "note: '-----BEGIN RSA PRIVATE KEY----- hunter2'",
        "WANDB_API_KEY hunter2",
        "HF_TOKEN hf_hunter2hunter2hunter2",
        "hf_hunter2hunter2hunter2",
    ],
)
def test_what_looks_like_a_secret_is_refused_and_not_repeated(line: str):
    problem = the_problem(f"a: 1\n{line}\nb: 2\n")
    assert (problem.code, problem.line) == ("secret", 2)
    secret = line.split(":", 1)[-1].strip()
    assert secret not in str(problem)
    assert "hunter2" not in str(problem)


@pytest.mark.bad_input(50)
@pytest.mark.parametrize("escape", [r"\e[31m", r"\x07", r"\u202e", r"\u200b", r"\x9b31m", r"\0", r"\n", r"\r"])
def test_control_characters_written_as_escapes_are_refused_and_shown_escaped(escape: str):
    problem = the_problem(f'name: "a{escape}b"')
    assert problem.code == "control_character"
    assert is_printable(str(problem).replace("\n", ""))


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str):
    with pytest.raises(InputError, match="cannot be read"):
        read_document(tmp_path / name)


@pytest.mark.parametrize("value", ["{python} x.py --tp {tensor_parallel}", "[1] x", "@file", "`date`", "%x"])
def test_text_that_begins_as_text_cannot_is_to_be_quoted(value: str):
    problem = the_problem(f"a: 1\nb:\n  c: {value}\nd: 2\n")
    assert (problem.line, problem.fix) == (3, f"put the whole value in quotes: text does not begin with {value[0]}")
    assert "quotes" not in the_problem("a: b: c\n").fix


@pytest.mark.parametrize("value", ["\n  c: [1, 2]\nd: 2", "\nc: 1", " # hunter2\nc: 1"])
def test_a_key_without_its_colon_is_told_with_its_own_line(value: str):
    problem = the_problem(f"a: 1\nspace{value}\n")
    assert (problem.line, problem.message, problem.fix) == (2, "`space` needs a colon", "write `space:`")


@pytest.mark.parametrize("value", ["5", "5  # of them", "http://5"])
def test_a_key_and_its_value_without_the_colon_between_them_are_told_without_the_value(value: str):
    problem = the_problem(f"a:\n  c: 1\n  max_trials {value}\n  b: 2\n")
    found = (problem.line, problem.message, problem.fix)
    assert found == (3, "`max_trials` needs a colon", "write `max_trials: ...`, the value after the colon")


@pytest.mark.bad_input(27)
@pytest.mark.parametrize("key", ["password:", "password:  # ours", "password: |", "- --db-password", "password:\n"])
def test_a_line_that_may_be_the_value_of_a_secret_is_not_repeated(key: str):
    problem = the_problem(f"{key}\nhunter2\nb: 2\n")
    assert "hunter2" not in str(problem.to_json())


def test_a_key_longer_than_yaml_allows_is_not_told_to_lack_its_colon():
    for line in ("x" * 1100 + ": 1", "x " * 600 + ": 1"):
        problem = the_problem(f"a: 1\n{line}\nb: 2\n")
        assert (problem.line, problem.fix) == (2, "check its brackets, colons and indentation")
        assert "xxx" not in problem.message


def test_set_replaces_adds_and_reads_its_value_as_yaml_and_the_rest_keeps_its_line():
    document = parsed("a: 1\nb:\n  c: [1, 2]\n")
    changed = with_overrides(document, ["b.c=3", "b.d=[x, true]", "e.f={min: 1}", "a="])
    assert changed.data == {"a": None, "b": {"c": 3, "d": ["x", True]}, "e": {"f": {"min": 1}}}
    assert document.data == {"a": 1, "b": {"c": [1, 2]}}
    changed = with_overrides(parsed("a: 1\nb:\n  c: [1, 2]\n"), ["b.c=3", "d.e=4"])
    assert changed.location(("b", "c")) == changed.location(("b", "c", 0)) == SourceLocation("--set", None)
    assert changed.location(("d",)) == SourceLocation("--set", None)
    assert changed.location(("b",)) == SourceLocation("search.yaml", 2)


@pytest.mark.bad_input(49)
@pytest.mark.parametrize(
    "override", ["a", "=1", "a..b=1", ".a=1", "a b=1", "a\x1b=1", "a.b={", "a=[1", ".".join("a" * 30) + "=1"]
)
def test_bad_syntax_in_set_is_refused(override: str):
    with pytest.raises(InputError) as caught:
        with_overrides(parsed("a: 1"), [override])
    (problem,) = caught.value.problems
    assert (problem.code, problem.file) == ("override", "--set")
    assert "\x1b" not in str(problem)


@pytest.mark.bad_input(49)
@pytest.mark.parametrize("text", ["{python} x.py", "'it's", "@file", "a: b: c"])
def test_text_that_is_no_yaml_is_told_how_to_be_quoted(text: str):
    with pytest.raises(InputError) as caught:
        with_overrides(parsed("a: 1"), [f"trainer.template={text}"])
    assert caught.value.problems[0].message.startswith("not YAML")
    said = caught.value.problems[0].fix.removeprefix("if it is text, quote it: ")
    option, override = shlex.split(said)
    assert (option, with_overrides(parsed("a: 1"), [override]).data["trainer"]) == ("--set", {"template": text})


@pytest.mark.bad_input(49)
def test_setting_a_key_below_a_value_is_refused():
    with pytest.raises(InputError, match="model is 'gpt2-tiny', which has no keys to set"):
        with_overrides(parsed("model: gpt2-tiny"), ["model.num_layers=2"])


@pytest.mark.bad_input(27, 49)
@pytest.mark.parametrize("override", ["a=[http://me:hunter2@db", "tracking.password={hunter2", "a={DB_PASS: hunter2"])
def test_a_secret_in_set_that_is_no_yaml_is_not_repeated_either(override: str):
    with pytest.raises(InputError) as caught:
        with_overrides(parsed("a: 1"), [override])
    [problem] = caught.value.problems
    assert (problem.code, problem.key) == ("secret", override.partition("=")[0])
    assert "hunter2" not in str(problem.to_json())


@pytest.mark.bad_input(4, 5)
@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_are_refused(raw: bytes):
    with suppress(InputError):
        parse_document(raw, "search.yaml", Path("/folder"))


@pytest.mark.slow
@pytest.mark.bad_input(3, 4)
@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", ": ", "- ", "[", "]", "{", "}", "&a ", "*a", "!!x ", "? ", "'", '"', "\n", ">"])))
def test_any_signs_of_yaml_are_a_document_or_are_refused(signs: list[str]):
    with suppress(InputError):
        parsed("".join(signs))
