from __future__ import annotations

import pytest

from search_spaces.errors import InputError
from tests.trials.trainers.specs import spec_of
from trials.trainers.command.trainer import (
    argument_problems,
    command_arguments,
    filled_arguments,
    placeholder_values,
    placeholders_in,
    require_template,
)

SPEC = spec_of("command", tensor_parallel=2, activation_checkpointing="full", sequence_parallel=True)


def words(template: str) -> list[str]:
    return command_arguments(template, SPEC, "/my env/python", "/run/it's/a1")


def test_placeholders_stand_for_values_and_text_may_depend_on_one():
    template = "{python} train.py --tp {tensor_parallel} --batch={global_batch_size} --sp {sequence_parallel}"
    assert words(template) == ["/my env/python", "train.py", "--tp", "2", "--batch=8", "--sp", "true"]
    assert words("run {num_layers} {train_iterations} {offload} {precision}") == ["run", "8", "40", "none", "bf16"]
    switch = "{activation_checkpointing=full:--recompute --every 1} {sequence_parallel=true:--sp}"
    assert words("train " + switch) == ["train", "--recompute", "--every", "1", "--sp"]
    assert words("train {activation_checkpointing=none:--no-recompute} {zero_stage=3:--fsdp}") == ["train"]
    assert placeholders_in("t {zero_stage} {precision=bf16:--bf16} {{tensor_parallel}}") == {"zero_stage", "precision"}


@pytest.mark.bad_input(39)
def test_a_placeholder_that_would_stand_for_nothing_is_refused():
    with pytest.raises(InputError) as caught:
        words("run --bucket-mb {bucket_mib}")
    [problem] = caught.value.problems
    assert problem.message == f"has {{bucket_mib}}, which has no value in {SPEC.layout.key}"
    assert words("run {bucket_mib=25:--bucket-mb 25} {bucket_mib=none:--own-buckets}") == ["run", "--own-buckets"]


@pytest.mark.security("no_shell")
def test_words_are_split_as_a_shell_splits_them_and_no_shell_runs():
    assert words("""train 'a b' "$HOME" `x` {{}} {attempt_folder}/out""") == [
        *("train", "a b", "$HOME", "`x`", "{}", "/run/it's/a1/out")
    ]


@pytest.mark.bad_input(39)
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("train {tensor_paralel}", "has the placeholder {tensor_paralel}"),
        ("train {tensor_parallel", "has a { outside of a placeholder"),
        ("train {zero_stage=3:{python}}", "outside of a placeholder"),
        ("train {activation_checkpointing=ful:--recompute}", "asks for activation_checkpointing 'ful'"),
        ("train {sequence_parallel=1:--sp}", "asks for sequence_parallel '1'"),
        ("train 'unended", "cannot be split into words: No closing quotation"),
        ("train {precision=bf16:--name 'unended}", "cannot be split into words: No closing quotation"),
        ("   ", "is empty"),
    ],
)
def test_a_template_that_is_none_is_refused(template, words):
    with pytest.raises(InputError) as caught:
        require_template(template)
    assert words in caught.value.problems[0].message
    assert caught.value.problems[0].key == "template"


@pytest.mark.bad_input(39)
def test_an_unknown_placeholder_is_answered_with_the_one_that_was_meant():
    for name, fix in (("micro_batch", "did you mean {micro_batch_size}?"), ("xyzzy", "write one of these names")):
        with pytest.raises(InputError) as caught:
            require_template(f"train {{{name}}}")
        assert caught.value.problems[0].fix == fix


# -- arguments of a script


def arguments(*given: str) -> list[str]:
    return filled_arguments(given, placeholder_values(SPEC, "/my env/python", "/run/it's/a1"))


def test_an_argument_with_a_placeholder_is_split_and_any_other_is_passed_as_it_is():
    assert arguments("--tp={tensor_parallel}", "it's one", "--json={{}}") == ["--tp=2", "it's one", "--json={}"]
    split = arguments("--out {attempt_folder}/x", "{sequence_parallel=true:--sp 'a b'}", "{zero_stage=3:--fsdp}")
    assert split == ["--out", "/run/it's/a1/x", "--sp", "a b"]
    assert [*argument_problems("it's", "arguments[0]")] == []
    for argument in ("--tp={tensor_paralel}", "--json={}", "{precision=bf61:--bf16}", "{precision=bf16:--name 'mine}"):
        assert [*argument_problems(argument, "arguments[0]")] != []
