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
from trials.ranks.startup import Startup
from trials.train.measurement.loop import TrainingLoop
from trials.train.parallel.device import Device
from trials.train.parallel.gather import RankHost
from trials.train.proof.fingerprint import common_software, fingerprint, megatron_software, software_mix
from trials.train.trial_run import flags_of
from trials.trial import FailureReason, Flag

CPU = Device(torch.device("cpu"))
SPEC = make_spec(Layout(tensor_parallel=4))
WELL = [RankHost("n1", 1.0), RankHost("n1", 1.02), RankHost("n2", 0.98), RankHost("n2", 1.0)]
ONE_SLOW = [*WELL[:3], RankHost("n2", 1.4)]
OF_CPUS = [RankHost("n1", None), RankHost("n2", None)]


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    ("rank_hosts", "of_loop", "slowest", "flags"),
    [
        (ONE_SLOW, (), None, ("suspect_node",)),
        (WELL, ("time_limit",), None, ("time_limit",)),
        (ONE_SLOW, ("time_limit", "suspect_node"), None, ("time_limit", "suspect_node")),
        (OF_CPUS, (), None, ()),
        (WELL, (), {"stragglers": [1]}, ("suspect_node", "straggler")),
        (OF_CPUS[:1] * 2, (), {"stragglers": [1]}, ("straggler",)),  # ranks that share a CPU
        (WELL, (), {"stragglers": []}, ()),
    ],
    ids=["slow", "alike", "drift-and-slow", "cpus", "straggler", "one-shared-cpu", "none"],
)
def test_a_slow_device_or_a_straggler_makes_the_measurement_suspect(rank_hosts, of_loop, slowest, flags):
    assert flags_of(SimpleNamespace(flags=of_loop), rank_hosts, OUTCOME.metrics, slowest) == flags


@pytest.mark.fault(38)
def test_a_slow_device_is_named_with_its_host_and_what_was_not_probed_is_absent(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = fingerprint(SPEC, CPU, ONE_SLOW)
    assert (found["probe_ms_by_rank"], found["slow_hosts"]) == ([1.0, 1.02, 0.98, 1.4], ["n2"])
    assert "slow_hosts" not in fingerprint(SPEC, CPU, WELL)
    found = fingerprint(SPEC, CPU, [RankHost(host, None) for host in ("n7", "n7", "n2", "n2")])
    assert found["hosts"] == ["n7", "n2"], "once, in the order of their ranks"
    assert not {"probe_ms_by_rank", "slow_hosts", "job_id"} & set(found)
    assert not {"job_id", "hosts", "probe_ms_by_rank", "slow_hosts", "host"} & set(COMPARABLE)


@pytest.mark.parametrize(
    ("engine", "accelerator", "flags"),
    [
        ("megatron-core", "cpu", (Flag.EMULATED_DEVICE,)),
        ("megatron-core", "a100-80gb", ()),
        ("torch", "cpu", ()),
    ],
)
def test_a_measurement_on_an_emulated_device_is_flagged(engine, accelerator, flags):
    spec = make_spec(Layout(engine=engine), accelerator=accelerator)
    model = SimpleNamespace(chunks=())
    assert TrainingLoop(spec, model, data=None, device=CPU, report=None, startup=Startup()).flags == flags


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


def test_software_that_differs_between_ranks_is_named_with_them_and_measures_nothing(monkeypatch):
    assert software_mix([LOCAL] * 3) is None
    other = {**LOCAL, "transformer_engine": "2.9.0"}
    assert software_mix([LOCAL, other, LOCAL]) == "transformer_engine is unknown on rank 0, 2, 2.9.0 on rank 1"
    monkeypatch.setitem(sys.modules, "megatron.core", SimpleNamespace(__version__="0.16.1"))
    other = {**LOCAL, "megatron_layers": "transformer_engine"}
    monkeypatch.setattr("trials.train.proof.fingerprint.gather_json", lambda mine, device: [mine, other])
    spec = make_spec(Layout(engine="megatron-core"))
    with pytest.raises(TrialFailure, match="the ranks' software differs: megatron_layers is local on rank 0,") as ended:
        common_software(spec, CPU, [layers_of("megatron.core.tensor_parallel")])
    assert ended.value.reason is FailureReason.SCRIPT_ERROR
    assert common_software(SPEC, CPU, []) == {}


def test_layouts_with_8_bit_products_name_torchao(monkeypatch):
    versions = {"torchtitan": "0.3.0", "torchao": "0.18.0"}
    monkeypatch.setattr("trials.train.proof.fingerprint.package_version", versions.get)
    monkeypatch.setattr("trials.train.proof.fingerprint.gather_json", lambda mine, device: [mine, mine])
    plain = Layout(engine="torchtitan")
    assert common_software(make_spec(plain), CPU, []) == {"torchtitan": "0.3.0"}
    fp8 = replace(plain, matmul_precision="fp8_rowwise")
    assert common_software(make_spec(fp8), CPU, []) == versions
