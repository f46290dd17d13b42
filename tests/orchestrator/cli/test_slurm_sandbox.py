"""parlay slurm-sandbox: a Slurm started and stopped by commands, each a process of its own."""

from __future__ import annotations

import os
import subprocess

import pytest

from orchestrator.cli.slurm_sandbox import cloud_like
from slurm.sandbox.apt_packages import program_path
from slurm.sandbox.config_files import CLOUD_CPUS, CloudNodes
from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import TINY_SEARCH
from tests.orchestrator.cli.parlay import parlay, parlay_here
from tests.slurm.sandboxes import require_slurm, short_folder

pytestmark = pytest.mark.timeout(120)  # each a command line or a few


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_what_start_prints_is_all_it_takes_to_use_it(tmp_path):
    require_slurm(accounting=False)
    with short_folder() as folder:
        started = parlay("slurm-sandbox", "start", folder, "--nodes", "3", "--gpus-per-node", "2", cwd=tmp_path)
        assert started.code == 0, started.err
        try:
            assert "3 nodes of 4 CPUs and 2 GPUs" in started.out
            script = "\n".join(line for line in started.out.splitlines() if not line.startswith("parlay run"))
            asked = subprocess.run(
                ["sh", "-e", "-c", f"{script}\nsinfo --noheader --format='%D %G'"],
                env={"PATH": program_path(os.environ)},
                capture_output=True,
                text=True,
            )
            assert asked.stdout.split() == ["3", "gpu:2"], asked.stderr

            again = parlay("slurm-sandbox", "start", folder, "--json", cwd=tmp_path).json
            size = {"nodes": 3, "cpus_per_node": 4, "gpus_per_node": 2, "accounting": False, "cloud": []}
            place = {"folder": str(folder), "slurm_conf": f"{folder}/slurm.conf", "running": True}
            assert again == {"schema": "parlay.slurm_sandbox/1", **place, **size}
            another = parlay("slurm-sandbox", "start", folder, "--nodes", "2", "--json", cwd=tmp_path)
            assert another.code == 6
        finally:
            stopped = parlay("slurm-sandbox", "stop", folder, "--json", cwd=tmp_path)
        assert (stopped.code, stopped.json["running"]) == (0, False)
        assert not SlurmSandbox.found_in(folder).running()


def test_a_searchs_nodes_are_those_of_its_cluster_in_its_own_partition(tmp_path):
    named = "launcher: {kind: slurm, slurm: {partition: batch, cpus_per_task: 7, usable_cpus: 56}}"
    big = TINY_SEARCH.replace("cpu, gpus_per_node: 2, num_nodes: 1", "a100-80gb, gpus_per_node: 8, num_nodes: 300")
    big = big.replace("global_batch_size: 8", "global_batch_size: 2400").replace("launcher: {kind: local}", named)
    paths = [tmp_path / f"{name}.yaml" for name in ("cpu", "big", "same")]
    for path, text in zip(paths, [TINY_SEARCH, big, big], strict=True):
        path.write_text(text)
    assert cloud_like(paths) == (
        CloudNodes("tiny", nodes=1, gpus_per_node=0, cpus_per_node=CLOUD_CPUS),
        CloudNodes("batch", nodes=300, gpus_per_node=8, cpus_per_node=56),
    )


def test_nodes_that_are_asked_for_twice_in_a_partition_are_bad_input(tmp_path):
    """tests/slurm/sandbox/test_sandbox.py has the sizes and folders that are refused."""
    for name, nodes in (("one", 1), ("two", 2)):
        (tmp_path / f"{name}.yaml").write_text(TINY_SEARCH.replace("num_nodes: 1", f"num_nodes: {nodes}"))
    words = ("box", "--like", "one.yaml", "--like", "two.yaml")
    refused = parlay_here("slurm-sandbox", "start", *words, "--json", cwd=tmp_path)
    assert refused.code == 2
    assert "partition tiny is given twice" in refused.json["error"]["message"]
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
