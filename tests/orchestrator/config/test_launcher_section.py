"""Section launcher: containers, options of Slurm from the file and the environment, memory of fork servers; and the
settings that are searched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from orchestrator.config.fork_servers import SERVER_MEMORY_MIB, forked_engines, launcher_with_servers
from orchestrator.config.schema.search_file import SearchFile
from orchestrator.config.setting_problems import candidate_problems
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.slurm_site import smallest_and_largest
from orchestrator.launchers.factory import job_options
from orchestrator.lifecycle.create import with_environment_options
from orchestrator.lifecycle.observers import attempt_factory_of
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from slurm.option_checks import option_problems
from slurm.request import Container, JobOptions, Launch, Runtime
from tests.kit import MINIMAL, loaded, refusals
from tests.orchestrator.config.test_refusals import COMMAND, EXPERTS
from trials.files.folders import SearchFolder
from trials.fork_server.owner import MOST_SERVERS

SLURM = "launcher.kind=slurm"
PILOT = "launcher.kind=slurm_pilot"
BOTH_ENGINES = "space.engine=[torch, deepspeed]"
MEGATRON = ["trainer.kind=megatron-lm", "trainer.script=pretrain_gpt.py"]


def containing(folder: Path, container: str, *changes: str) -> SearchSpec:
    return loaded(folder, MINIMAL, SLURM, f"launcher.slurm.container={container}", *changes)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("null", None),
        ("{runtime: pyxis, image: 'nvcr.io#nvidia/torch'}", Container(Runtime.PYXIS, "nvcr.io#nvidia/torch")),
        (
            "{runtime: shifter, image: 'docker:nersc/pytorch:1', mounts: ['/tmp:/data:ro']}",
            Container(Runtime.SHIFTER, "docker:nersc/pytorch:1", ("/tmp:/data:ro",)),
        ),
    ],
)
def test_a_container_is_read_and_written_down(tmp_path, given, read):
    spec = containing(tmp_path, given)
    assert spec.launcher.slurm.job_options().container == read
    assert SearchSpec.from_json(json.loads(json.dumps(spec.to_json()))).launcher == spec.launcher


def test_an_image_that_is_a_path_starts_from_the_files_folder(tmp_path):
    launcher = {"kind": "slurm", "slurm": {"container": {"runtime": "apptainer", "image": "torch.sif"}}}
    container = loaded(tmp_path, launcher=launcher).launcher.slurm.job_options().container
    assert container.image == str(tmp_path / "torch.sif")


@pytest.mark.parametrize(("accelerator", "gpus"), [("h100-80gb", "nv"), ("mi250x-gcd-64gb", "rocm"), ("cpu", None)])
def test_apptainer_brings_in_the_accelerators_driver(tmp_path, accelerator, gpus):
    cluster = f"cluster={{accelerator: {accelerator}, gpus_per_node: 2, num_nodes: 1}}"
    spec = containing(tmp_path, "{runtime: apptainer, image: 'docker://torch'}", cluster)
    assert job_options(spec.launcher, spec.cluster).container.gpus == gpus


def test_ranks_in_an_image_take_its_python_unless_they_are_told_of_another(tmp_path):
    folder = SearchFolder(tmp_path / "small-abcdef")
    image = "{runtime: pyxis, image: torch}"
    assert attempt_factory_of(folder, containing(tmp_path, image)).python == "python3"
    assert attempt_factory_of(folder, containing(tmp_path, image, "trainer.python=/opt/py")).python == "/opt/py"
    assert attempt_factory_of(folder, containing(tmp_path, "[apptainer, exec, x.sif]")).python != "python3"


@pytest.mark.bad_input(23, 24, 25, 26, 28, 29, 30)
@pytest.mark.security("no_shell", "directive_values")
def test_what_does_not_belong_into_a_script_is_refused_in_the_words_of_its_rule(tmp_path):
    """One case for each kind of option; tests/slurm/test_option_checks.py has the whole table."""
    options = JobOptions(
        gpus_per_node=4,
        gres="gpu:4",
        env={"2ND": "x", "RANK": "0"},
        launch=Launch(srun=("--ntasks=2",), node_folders={"A;B": "/tmp"}, address="node1"),
        directives=("--nice=5", "--output=x", "nice=5", "--uid=root"),
    )
    lines = {
        "gpus_per_node": "4",
        "gres": "'gpu:4'",
        "env": "{2ND: x, RANK: '0'}",
        "launch": "{srun: [--ntasks=2], node_folders: {A;B: /tmp}, address: node1}",
        "directives": "[--nice=5, --output=x, nice=5, --uid=root]",
    }
    section = "launcher:\n  kind: slurm\n  slurm:\n" + "".join(f"    {key}: {value}\n" for key, value in lines.items())
    found = refusals(tmp_path, MINIMAL + section)
    by_key = {p.key: (p.code, p.value, p.rule, p.fix) for p in found}
    assert by_key == {
        f"launcher.slurm.{p.key}": ("slurm_option", p.value, p.rule, p.fix) for p in option_problems(options)
    }
    names = [re.split(r"[.\[]", p.key.removeprefix("launcher.slurm."))[0] for p in found]
    assert [p.line for p in found] == [MINIMAL.count("\n") + 4 + list(lines).index(name) for name in names]
    assert set(names) == lines.keys() - {"gpus_per_node"}


CARRIED = {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "main", "SBATCH_EXCLUSIVE": "", "SBATCH_GPUS_PER_NODE": "2"}


def test_options_of_the_environment_are_said_and_written_into_the_search(tmp_path, logged):
    spec = loaded(tmp_path, MINIMAL, SLURM, "launcher.slurm.partition=gpu")
    spec = with_environment_options(spec, CARRIED | {"SBATCH_QOS": "debug"})
    section = spec.launcher.slurm
    assert (section.account, section.partition, section.qos, section.gpus_per_node) == ("mine", "gpu", "debug", 2)
    assert section.exclusive is True
    [line] = logged
    assert "launcher.slurm.account mine (SBATCH_ACCOUNT)" in line
    assert "partition" not in line
    assert SearchSpec.from_json(json.loads(json.dumps(spec.to_json()))).launcher.slurm == section


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("SBATCH_ACCOUNT", "a b", "account"),
        ("SBATCH_GPUS_PER_NODE", "many", "gpus_per_node"),
        ("SBATCH_GPUS_PER_NODE", "v100 x:2", "gres"),
    ],
)
def test_an_option_of_the_environment_that_may_not_stand_in_a_script_is_the_variables_fault(
    tmp_path, variable, value, key
):
    with pytest.raises(InputError) as caught:
        with_environment_options(loaded(tmp_path, MINIMAL, SLURM), {variable: value})
    [problem] = caught.value.problems
    assert (problem.file, problem.line, problem.key) == (variable, None, f"launcher.slurm.{key}")
    assert problem.fix == f"correct or unset {variable}, or set launcher.slurm.{key} in the search file"


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "changes",
    [[SLURM, "launcher.slurm.gres='gpu:4'"], [SLURM, "launcher.slurm.gpus_per_node=4"], ["launcher.kind=local"]],
)
def test_a_file_that_asks_for_gpus_or_has_another_launcher_is_not_contradicted_by_the_environment(tmp_path, changes):
    spec = loaded(tmp_path, MINIMAL, *changes)
    assert with_environment_options(spec, {"SBATCH_GPUS_PER_NODE": "2", "SBATCH_GRES": "gpu:2"}) == spec


@pytest.mark.parametrize(
    ("changes", "engines"),
    [
        ([], ("torch",)),
        ([BOTH_ENGINES], ("deepspeed", "torch")),
        ([BOTH_ENGINES, "launcher.kind=local", "measure.warm_start=true"], ("deepspeed", "torch")),
        (["measure.warm_start=false"], ()),
        ([SLURM], ()),
        (MEGATRON, ()),
    ],
)
def test_ranks_are_forked_where_the_launcher_the_trainer_and_the_user_allow_it(tmp_path, changes, engines):
    assert forked_engines(loaded(tmp_path, MINIMAL, *changes)) == engines


@pytest.mark.parametrize(
    ("changes", "mem"),
    [
        ([PILOT, "launcher.slurm.mem=4G"], f"{4096 + MOST_SERVERS * SERVER_MEMORY_MIB}M"),
        ([PILOT, "launcher.slurm.mem=4G", "measure.warm_start=false"], "4G"),
    ],
)
def test_jobs_of_several_trials_ask_for_the_memory_of_their_fork_servers_too(tmp_path, changes, mem):
    spec = loaded(tmp_path, MINIMAL, *changes)
    assert launcher_with_servers(spec).slurm.mem == mem
    assert {request.options.mem for request in smallest_and_largest(spec, candidates_of(spec))} == {mem}


LOCAL = "launcher.kind=local"


def test_every_combination_is_a_candidate_and_survives_search_json(tmp_path):
    spec = loaded(
        tmp_path,
        MINIMAL,
        LOCAL,
        "space.env={OMP_NUM_THREADS: [1, 2], X: [null, a b]}",
        "space.launch={cpu_bind: [null, cores]}",
    )
    texts = {layout.settings for layout in candidates_of(spec).layouts}
    assert len(texts) == 8
    assert "-env.X env.OMP_NUM_THREADS=1" not in texts  # the text is sorted by name
    assert "env.OMP_NUM_THREADS=2 'env.X=a b' launch.cpu_bind=cores" in texts
    assert [*candidates_of(SearchSpec.from_json(spec.to_json())).layouts] == [*candidates_of(spec).layouts]


@pytest.mark.parametrize(
    ("baseline", "text"),
    [
        ("{tensor_parallel: 1}", "-env.OMP_NUM_THREADS env.Y=1"),
        (
            "{tensor_parallel: 1, env: {OMP_NUM_THREADS: 4}, launch: {cpu_bind: cores}}",
            "env.OMP_NUM_THREADS=4 env.Y=1 launch.cpu_bind=cores",
        ),
    ],
)
def test_the_baseline_has_its_own_values_else_the_only_ones(tmp_path, baseline, text):
    spec = loaded(tmp_path, MINIMAL, LOCAL, "space.env={OMP_NUM_THREADS: [1, 2], Y: 1}", f"baseline={baseline}")
    assert spec.baseline.settings == text


@pytest.mark.parametrize(
    "settings", ["software.python=/tmp/python", "-env.RANK", "env.DB_PASSWORD=hunter2", "launch.cpu_bind=sockets"]
)
def test_settings_of_a_table_have_the_same_rules(settings):
    file = SearchFile.model_validate({**yaml.safe_load(MINIMAL), "launcher": {"kind": "local"}})
    layouts = [Layout(), Layout(settings=settings)]
    [problem] = candidate_problems(layouts, file)
    assert (problem.key, bool(problem.rule), bool(problem.fix)) == ("space.candidates", True, True)
    assert "hunter2" not in str(problem)


def test_a_table_that_is_simulated_starts_nothing():
    launcher = {"kind": "simulated", "table": "table.csv"}
    file = SearchFile.model_validate({**yaml.safe_load(MINIMAL), "launcher": launcher})
    assert not list(candidate_problems([Layout(settings="software.python=/tmp/python")], file))
    [problem] = candidate_problems([Layout(settings="env.DB_PASS=hunter2")], file)  # its pages would show it
    assert "looks like a secret" in problem.message


@pytest.mark.parametrize(
    ("changes", "routing"),
    [
        ([], None),
        ([EXPERTS], "balanced"),
        ([EXPERTS, "measure.routing=skewed(2.50)"], "skewed(2.5)"),
        ([EXPERTS, COMMAND], "learned"),
    ],
)
def test_routing_is_balanced_where_it_can_be_forced_and_none_without_experts(tmp_path, changes, routing):
    assert loaded(tmp_path, MINIMAL, *changes).measure.routing == routing


@pytest.mark.parametrize(("text", "value"), [("auto", None), ("true", True), ("false", False)])
def test_a_warm_start_is_auto_true_or_false(tmp_path, text, value):
    assert loaded(tmp_path).measure.warm_start is None
    assert loaded(tmp_path, MINIMAL, f"measure.warm_start={text}").measure.warm_start is value
