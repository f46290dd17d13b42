"""Options that depend on the version of Megatron-LM, by the files beside the script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.errors import InputError
from tests.trials.trainers.specs import spec_of
from trials.attempt_result import are_comparable
from trials.external.fingerprint import fingerprint
from trials.ranks.environment import RankEnvironment
from trials.trainers.megatron_lm.checkout import core_version, gradient_options
from trials.trainers.registry import invocation

OPTION = ("--megatron-fsdp-main-grads-dtype", "fp32")
FSDP = {"zero_stage": 2, "precision": "bf16"}
PACKAGE = "# Copyright\nMAJOR = 0\nMINOR = {}\nPATCH = 1\nPRE_RELEASE = 'rc0'\nVERSION = (MAJOR, MINOR, PATCH)\n"
WITH, WITHOUT = f"group.add_argument('{OPTION[0]}', default='auto')\n", "group.add_argument('--main-grads-dtype')\n"


def script_in(folder: Path, parser: str | None, package: str | None) -> str:
    for name, text in (("training/arguments.py", parser), ("core/package_info.py", package)):
        path = folder / "megatron" / name
        path.parent.mkdir(parents=True)
        if text is not None:
            path.write_text(text)
    (folder / "pretrain_gpt.py").write_text("")
    return str(folder / "pretrain_gpt.py")


@pytest.mark.parametrize(
    ("parser", "minor", "expected"),
    [
        (WITHOUT, 16, []),
        (WITH, 16, [OPTION]),  # main between the option and the next version
        (WITH, 17, [OPTION]),
        (WITHOUT, 17, [OPTION]),  # a parser in another file; one without the option ends with its name
    ],
)
def test_the_option_is_given_to_versions_that_have_it(tmp_path, parser, minor, expected):
    script = script_in(tmp_path / "checkout", parser, PACKAGE.format(minor))
    link = tmp_path / "pretrain.py"
    link.symlink_to(script)
    for path in (script, str(link)):  # Python takes the folder of the file behind a link
        assert gradient_options(spec_of("megatron-lm", **FSDP).layout, path, ()) == expected


@pytest.mark.parametrize(
    ("package", "version"), [(PACKAGE.format(16), "0.16.1rc0"), ("MAJOR = 0\nMINOR = 20\n", None), (None, None)]
)
def test_the_version_of_megatron_core_is_that_beside_the_script(tmp_path, package, version):
    assert core_version(script_in(tmp_path, WITHOUT, package)) == version


def test_a_trials_fingerprint_has_it_and_the_commit_of_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr("trials.external.fingerprint.package_version", lambda name: f"installed {name}")
    env = RankEnvironment(rank=0, world_size=1, local_rank=0)
    for package, version in ((PACKAGE.format(20), "0.20.1rc0"), (None, "installed megatron-core")):
        spec = spec_of("megatron-lm", trainer={"script": script_in(tmp_path / version, WITHOUT, package)})
        found = [fingerprint(spec, env)]
        assert found[0]["megatron_core"] == version
    assert "megatron_core" not in fingerprint(spec_of("megatron-deepspeed"), env)
    (tmp_path / version / ".git").mkdir()
    for commit in ("a" * 40, "b" * 40):
        (tmp_path / version / ".git" / "HEAD").write_text(commit + "\n")
        found.append(fingerprint(spec, env))
    assert [each.get("script_commit") for each in found] == [None, "a" * 40, "b" * 40]
    assert not are_comparable(*found[1:])


def test_a_trial_is_started_with_it_and_without_one_connection(tmp_path):
    script = script_in(tmp_path, WITH, PACKAGE.format(20))
    made = invocation(spec_of("megatron-lm", trainer={"script": script}, **FSDP), "python", "/run/a1")
    assert made.command[made.command.index(OPTION[0]) + 1] == OPTION[1]
    assert (made.environment, made.refused) == ({}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})


@pytest.mark.bad_input(38)
@pytest.mark.parametrize(("parser", "package"), [(None, PACKAGE.format(16)), (WITHOUT, None), (WITHOUT, "VERSION = 1")])
def test_a_layout_that_depends_on_an_unknown_version_is_refused(tmp_path, parser, package):
    script = script_in(tmp_path, parser, package)
    layout = spec_of("megatron-lm", **FSDP).layout
    with pytest.raises(InputError) as refused:
        gradient_options(layout, script, ())
    [problem] = refused.value.problems
    assert (problem.key, problem.value) == ("trainer.script", script)
    assert " ".join(OPTION) in (problem.fix or "")
    assert gradient_options(layout, script, [f"{OPTION[0]}=bf16"]) == []
    assert gradient_options(replace(layout, zero_stage=1), script, ()) == []
    assert gradient_options(replace(layout, precision="fp32"), script, ()) == []
