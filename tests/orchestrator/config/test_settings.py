"""Environment variables and launch options as axes of a search file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.config.fork_servers import SERVER_MEMORY_MIB, launcher_with_servers
from orchestrator.config.loader import load_search_file
from orchestrator.config.setting_problems import candidate_problems
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from orchestrator.schema.search_file import SearchFile
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.kit import MINIMAL

LOCAL = "launcher.kind=local"
SLURM = "launcher.kind=slurm"
H100 = "cluster={accelerator: h100-80gb, gpus_per_node: 8, num_nodes: 1}"


def spec_with(folder: Path, *changes: str) -> SearchSpec:
    (folder / "search.yaml").write_text(MINIMAL)
    return load_search_file(folder / "search.yaml", changes)


def test_every_combination_is_a_candidate_and_survives_search_json(tmp_path):
    spec = spec_with(
        tmp_path, LOCAL, "space.env={OMP_NUM_THREADS: [1, 2], X: [null, a b]}", "space.launch={cpu_bind: [null, cores]}"
    )
    texts = {layout.settings for layout in candidates_of(spec).layouts}
    assert len(texts) == 8
    assert "-env.X env.OMP_NUM_THREADS=1" not in texts  # the text is sorted by name
    assert "env.OMP_NUM_THREADS=2 'env.X=a b' launch.cpu_bind=cores" in texts
    assert candidates_of(SearchSpec.from_json(spec.to_json())) == candidates_of(spec)


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
    spec = spec_with(tmp_path, LOCAL, "space.env={OMP_NUM_THREADS: [1, 2], Y: 1}", f"baseline={baseline}")
    assert spec.baseline is not None
    assert spec.baseline.settings == text


REFUSED = [
    (
        ["launcher.kind=slurm", "space.launch={hint: [null, nomultithread], cpu_bind: [null, cores]}"],
        "space.launch.hint",
        "is given with cpu_bind",
    ),
    (
        ["launcher.kind=slurm", "launcher.slurm.threads_per_core=1", "space.launch={hint: nomultithread}"],
        "space.launch.hint",
        "is given with launcher.slurm.threads_per_core",
    ),
    ([LOCAL, "space.env={RANK: [0, 1]}"], "space.env.RANK", "is set by the launcher"),
    ([LOCAL, "space.env={SLURM_CPU_BIND: none}"], "space.env.SLURM_CPU_BIND", "is set by the launcher"),
    ([LOCAL, "space.env={PYTHONPATH: /a}"], "space.env.PYTHONPATH", "is set by the launcher"),
    (
        [LOCAL, H100, "space.env={CUDA_DEVICE_MAX_CONNECTIONS: [1, 8]}"],
        "space.env.CUDA_DEVICE_MAX_CONNECTIONS",
        "follows from the layout",
    ),
    ([LOCAL, "space.env={NCCL_ALGO: [null, Ring]}"], "space.env.NCCL_ALGO", "is of GPUs, on cpu"),
    (
        [LOCAL, "baseline={tensor_parallel: 1, env: {PYTORCH_CUDA_ALLOC_CONF: a}}"],
        "baseline.env.PYTORCH_CUDA_ALLOC_CONF",
        "is of GPUs",
    ),
    (
        [LOCAL, H100, "space.env={PYTORCH_ALLOC_CONF: a, PYTORCH_CUDA_ALLOC_CONF: b}"],
        "space.env.PYTORCH_CUDA_ALLOC_CONF",
        "is given with PYTORCH_ALLOC_CONF",
    ),
    (
        [SLURM, "launcher.slurm.env={FI_PROVIDER: cxi}", "space.env={FI_PROVIDER: [cxi, tcp]}"],
        "space.env.FI_PROVIDER",
        "is in launcher.slurm.env",
    ),
    (
        [SLURM, "launcher.slurm.launch.srun=['--cpu-bind=none']", "space.launch={cpu_bind: [none, cores]}"],
        "space.launch.cpu_bind",
        "is in launcher.slurm.launch.srun",
    ),
    ([LOCAL, "space.launch={cpu_bind: [none, sockets]}"], "space.launch.cpu_bind", "is sockets"),
    ([LOCAL, "space.launch={mpi: pmix}"], "space.launch.mpi", "is pmix"),
    (
        [LOCAL, "search.parallel_trials=2", "space.launch={cpu_bind: cores}"],
        "space.launch.cpu_bind",
        "with parallel trials",
    ),
    (["space.launch={cpu_bind: core}"], "space.launch.cpu_bind", "is 'core'"),
    (["space.launch={cpu: cores}"], "space.launch", "unknown option"),
    (["space.env={9X: 1}"], "space.env", "is named"),
    (["space.env={X: [1, '1']}"], "space.env.X", "twice"),
    (["space.env={X: true}"], "space.env.X", "is true"),
    (["space.env={X: []}"], "space.env.X", "empty list"),
]


@pytest.mark.parametrize(("changes", "key", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused_names_rule_and_fix(tmp_path, changes, key, message):
    with pytest.raises(InputError) as raised:
        spec_with(tmp_path, *changes)
    problem = next(problem for problem in raised.value.problems if message in problem.message)
    assert (problem.key or "").startswith(key)
    assert problem.rule
    assert problem.fix


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("software.python=/tmp/python", "software.python is in a table"),
        ("env.PYTHONPATH=/tmp", "is set by the launcher"),
        ("-env.RANK", "is set by the launcher"),
        ("env.NCCL_ALGO=Ring", "is of GPUs"),
        ("env.DB_PASSWORD=hunter2", "looks like a secret"),
        ("env.A=" + "x" * 1025, "is longer"),
        ("launch.cpu_bind=ranks", "is 'ranks'"),
        ("launch.cpu_bind=sockets", "is sockets"),
    ],
)
def test_settings_of_a_table_have_the_same_rules(settings, message):
    file = SearchFile.model_validate({**yaml.safe_load(MINIMAL), "launcher": {"kind": "local"}})
    layouts = [Layout(), Layout(settings=settings)]
    [problem] = candidate_problems(layouts, file)
    assert message in problem.message
    assert (problem.key, bool(problem.rule), bool(problem.fix)) == ("space.candidates", True, True)
    assert "hunter2" not in str(problem)


def test_a_table_that_is_simulated_starts_nothing():
    launcher = {"kind": "simulated", "table": "table.csv"}
    file = SearchFile.model_validate({**yaml.safe_load(MINIMAL), "launcher": launcher})
    assert not list(candidate_problems([Layout(settings="software.python=/tmp/python")], file))
    [problem] = candidate_problems([Layout(settings="env.DB_PASS=hunter2")], file)  # its pages would show it
    assert "looks like a secret" in problem.message


def test_each_environment_has_a_fork_server_of_its_own(tmp_path):
    changes = ("launcher.kind=slurm_pilot", "launcher.slurm.mem=4G")
    spec = spec_with(
        tmp_path, *changes, "space.env={OMP_NUM_THREADS: [1, 2]}", "space.launch={cpu_bind: [null, cores]}"
    )
    assert launcher_with_servers(spec).slurm.mem == f"{4096 + 2 * SERVER_MEMORY_MIB}M"
