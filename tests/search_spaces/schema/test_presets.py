from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.errors import InputError
from search_spaces.schema import presets
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate


@pytest.mark.parametrize("name", presets.preset_names(presets.MODELS))
def test_every_model_that_comes_along_is_a_model(name: str):
    shape = validate(ModelSection, presets.preset(presets.MODELS, name)).shape()
    assert shape.vocab_size % 128 == 0


@pytest.mark.parametrize("name", presets.preset_names(presets.CLUSTERS))
def test_every_cluster_that_comes_along_is_a_cluster(name: str):
    cluster = validate(ClusterSection, presets.preset(presets.CLUSTERS, name)).cluster()
    assert cluster.num_gpus >= 1
    assert not cluster.links_are_assumed
    assert (cluster.links is None) == (name == "this-machine")


@pytest.mark.parametrize("name", [name for name in presets.preset_names(presets.CLUSTERS) if name != "this-machine"])
def test_what_is_assumed_of_a_node_is_what_its_ready_made_cluster_says(name: str):
    cluster = validate(ClusterSection, presets.preset(presets.CLUSTERS, name)).cluster()
    assumed = replace(cluster, given_links=None).links
    if name in _OF_THEIR_OWN:
        assert cluster.links.domains != assumed.domains
    else:
        assert cluster.links.domains == assumed.domains
    if cluster.links.fabric is not None:
        assert replace(cluster.links.fabric, by_nodes=()) == assumed.fabric


_OF_THEIR_OWN = {"a40-pair", "playbook-h100"}
"""Clusters with unusual nodes: bridged, and measured."""


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        *(("gpt2-124m", 0.124), ("gpt2-350m", 0.355), ("gpt2-1.3b", 1.3), ("gpt2-774m", 0.774)),
        *(("gpt2-1.5b", 1.558), ("yuan-4.7b", 4.7), ("gpt-22b", 22), ("gpt-175b", 175), ("yuan-245b", 245.7)),
        *(("gpt-530b", 530), ("gpt-1t", 1007), ("llama-7b", 6.74), ("llama-3.1-8b", 8.030)),
        *(("llama-3.1-70b", 70.554), ("llama-3.1-405b", 405.85), ("qwen3-8b", 8.191), ("qwen3-32b", 32.762)),
        *(("mistral-7b", 7.248), ("gemma-3-27b", 27.009), ("mixtral-8x7b", 46.70), ("qwen3-30b-a3b", 30.53)),
        *(("gpt-oss-20b", 20.91), ("gpt-oss-120b", 116.83), ("deepseek-v3", 671.03 + 11.51)),
    ],
)
def test_a_models_name_tells_its_size(name: str, billions: float):
    shape = validate(ModelSection, presets.preset(presets.MODELS, name)).shape()
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.02 if name.startswith(("gpt", "yuan")) else 2e-3)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        *(("H100", "h100-80gb"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA H100 80GB HBM3", "h100-80gb")),
        *(("V100-32GB DGXS", "v100-32gb"), ("A100 40GB", "a100-40gb"), ("MI250X GCD 64GB", "mi250x-gcd-64gb")),
        *(("A40 48GB", "a40-48gb"), ("NVIDIA GH200 480GB", "gh200-96gb"), ("NVIDIA B200", "b200-180gb")),
        *(("NVIDIA B300 SXM6 AC", "b300-288gb"), ("NVIDIA GB200", "gb200-186gb"), ("NVIDIA GB300", "gb300-288gb")),
        *(("AMD Instinct MI300X", "mi300x-192gb"), ("MI325X", "mi325x-256gb")),
        *(("AMD Instinct MI350X", "mi350x-288gb"), ("AMD Instinct MI355X", "mi355x-288gb"), ("cpu", "cpu")),
    ],
)
def test_an_accelerator_goes_by_the_names_of_data_sheets_and_tables(spelling: str, name: str):
    assert presets.accelerator_named(spelling).name == name


@pytest.mark.parametrize("name", ["a100", "v100", "gh200", "", "b400"])
def test_an_accelerator_that_is_unknown_or_could_be_two_is_refused_with_the_known_ones(name: str):
    with pytest.raises(InputError, match="one of v100-16gb, v100-32gb"):
        presets.accelerator_named(name)


@pytest.mark.parametrize("name", ["gpt2-124", "../clusters/frontier", "", "gpt2-124m.yaml"])
def test_a_preset_that_is_not_there_is_refused_with_those_that_are(name: str):
    with pytest.raises(InputError, match="the models that come with Parlay: deepseek-v3, gemma-3-27b") as caught:
        presets.preset_text(presets.MODELS, name)
    if name == "gpt2-124":
        assert caught.value.problems[0].fix == "did you mean gpt2-124m?"
