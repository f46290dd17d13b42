"""Hosts and software of the ranks, and flags for a device that is slower than the others."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from search_spaces.layouts.layout import Layout
from tests.kit import OUTCOME
from tests.trials.train.trial_processes import make_spec
from trials.attempt_result import COMPARABLE
from trials.ranks.failures import TrialFailure
from trials.train.parallel.device import Device
from trials.train.parallel.gather import RankHost
from trials.train.proof.fingerprint import common_software, fingerprint, megatron_software, software_mix
from trials.train.trial_run import flags_of
from trials.trial import FailureReason

CPU = Device(torch.device("cpu"))
SPEC = make_spec(Layout(tensor_parallel=4))
WELL = [RankHost("n1", 1.0), RankHost("n1", 1.02), RankHost("n2", 0.98), RankHost("n2", 1.0)]
ONE_SLOW = [*WELL[:3], RankHost("n2", 1.4)]
OF_CPUS = [RankHost("n1", None), RankHost("n2", None)]


def loop_with(*flags: str):
    """A loop that ended with these flags."""
    return SimpleNamespace(flags=flags)


@pytest.mark.fault(38)
def test_a_slow_device_makes_the_measurement_suspect_and_its_host_is_named():
    assert flags_of(loop_with(), ONE_SLOW, OUTCOME.metrics, {}) == ("suspect_node",)
    found = fingerprint(SPEC, CPU, ONE_SLOW)
    assert found["probe_ms_by_rank"] == [1.0, 1.02, 0.98, 1.4]
    assert found["slow_hosts"] == ["n2"]


@pytest.mark.fault(38)
def test_devices_that_are_alike_are_no_reason_for_suspicion():
    assert flags_of(loop_with("time_limit"), WELL, OUTCOME.metrics, {}) == ("time_limit",)
    assert "slow_hosts" not in fingerprint(SPEC, CPU, WELL)


@pytest.mark.fault(38)
def test_a_drift_and_a_slow_device_are_one_flag():
    assert flags_of(loop_with("time_limit", "suspect_node"), ONE_SLOW, OUTCOME.metrics, {}) == (
        "time_limit",
        "suspect_node",
    )


def test_what_was_not_probed_is_absent():
    assert flags_of(loop_with(), OF_CPUS, OUTCOME.metrics, {}) == ()
    assert not {"probe_ms_by_rank", "slow_hosts"} & set(fingerprint(SPEC, CPU, OF_CPUS))


@pytest.mark.parametrize(
    ("rank_hosts", "flags"),
    [
        (WELL, ("suspect_node", "straggler")),
        (OF_CPUS, ("suspect_node", "straggler")),
        (OF_CPUS[:1] * 2, ("straggler",)),
    ],
    ids=["gpus", "several-cpu-nodes", "one-shared-cpu"],
)
def test_a_straggler_makes_its_node_suspect_where_ranks_do_not_share_a_cpu(rank_hosts, flags):
    assert flags_of(loop_with(), rank_hosts, OUTCOME.metrics, {"stragglers": [1]}) == flags
    assert flags_of(loop_with(), rank_hosts, OUTCOME.metrics, {"stragglers": []}) == ()


def test_hosts_are_named_once_in_the_order_of_their_ranks(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = fingerprint(SPEC, CPU, [RankHost(host, None) for host in ("n7", "n7", "n2", "n2")])
    assert found["hosts"] == ["n7", "n2"]
    assert "job_id" not in found


def test_where_a_trial_ran_does_not_make_it_another_machine():
    assert not {"job_id", "hosts", "probe_ms_by_rank", "slow_hosts", "host"} & set(COMPARABLE)


def layers_of(module: str) -> torch.nn.Module:
    """A model chunk with one layer whose class derives from one of this module."""
    base = type("Linear", (torch.nn.Module,), {"__module__": module})
    return torch.nn.Sequential(type("Derived", (base,), {"__module__": "megatron.core.extensions"})())


@pytest.mark.parametrize(
    ("module", "layers"),
    [("transformer_engine.pytorch.module", "transformer_engine"), ("megatron.core.tensor_parallel", "local")],
)
def test_the_layers_that_megatron_core_took_are_asked_of_the_chunks(monkeypatch, module, layers):
    monkeypatch.setattr("trials.train.proof.fingerprint.package_version", {"transformer-engine": "2.9.0"}.get)
    monkeypatch.setitem(sys.modules, "megatron.core", SimpleNamespace(__version__="0.16.2"))
    found = megatron_software([layers_of(module)])
    assert found["megatron_layers"] == layers
    assert found["transformer_engine"] == ("2.9.0" if layers == "transformer_engine" else None)
    assert found["megatron_core"] == "0.16.2"
    assert fingerprint(SPEC, CPU, WELL, found).items() >= {"megatron_layers": layers, "megatron_core": "0.16.2"}.items()
    assert "megatron_layers" not in fingerprint(SPEC, CPU, WELL)


LOCAL = {"megatron_core": "0.16.1", "transformer_engine": None, "megatron_layers": "local"}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (LOCAL, None),
        ({**LOCAL, "megatron_core": "0.16.2"}, "megatron_core is 0.16.1 on rank 0, 2, 0.16.2 on rank 1"),
        (
            {**LOCAL, "transformer_engine": "2.9.0", "megatron_layers": "transformer_engine"},
            "transformer_engine is unknown on rank 0, 2, 2.9.0 on rank 1; megatron_layers is local on rank 0, 2,"
            " transformer_engine on rank 1",
        ),
    ],
)
def test_software_that_differs_between_ranks_is_named_with_its_ranks(second, words):
    assert software_mix([LOCAL, second, LOCAL]) == words


def test_ranks_with_different_layers_measure_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron.core", SimpleNamespace(__version__="0.16.1"))
    other = {**LOCAL, "megatron_layers": "transformer_engine"}
    monkeypatch.setattr("trials.train.proof.fingerprint.gather_json", lambda mine, device: [mine, other])
    spec = make_spec(Layout(engine="megatron-core"))
    with pytest.raises(TrialFailure, match="the ranks' software differs: megatron_layers is local on rank 0,") as ended:
        common_software(spec, CPU, [layers_of("megatron.core.tensor_parallel")])
    assert ended.value.reason is FailureReason.SCRIPT_ERROR
    assert common_software(SPEC, CPU, []) == {}


def test_layouts_with_8_bit_products_name_torchao(monkeypatch):
    monkeypatch.setattr(
        "trials.train.proof.fingerprint.package_version", {"torchtitan": "0.3.0", "torchao": "0.18.0"}.get
    )
    monkeypatch.setattr("trials.train.proof.fingerprint.gather_json", lambda mine, device: [mine, mine])
    plain = Layout(engine="torchtitan")
    assert common_software(make_spec(plain), CPU, []) == {"torchtitan": "0.3.0"}
    fp8 = replace(plain, matmul_precision="fp8_rowwise")
    assert common_software(make_spec(fp8), CPU, []) == {"torchtitan": "0.3.0", "torchao": "0.18.0"}
