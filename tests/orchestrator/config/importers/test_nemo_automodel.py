from __future__ import annotations

from typing import Any

import pytest
import yaml

from orchestrator.config.importers.registry import read_automodel, read_source
from search_spaces.errors import InputError
from tests.orchestrator.config.importers.samples import with_keys

RECIPE = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 32, "local_batch_size": 2, "max_steps": 100},
    "model": {"pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B"},
    "peft": {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "target_modules": "*_proj", "dim": 16},
    "distributed": {
        "strategy": "fsdp2",
        "dp_size": "none",
        "tp_size": 2,
        "cp_size": 1,
        "activation_checkpointing": True,
    },
}


def read(**keys: Any):
    return read_automodel(yaml.safe_dump(with_keys(RECIPE, {n.replace("__", "."): value for n, value in keys.items()})))


def test_a_recipe_gives_layout_batch_and_adapters(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    found = read_source(path)
    assert (found.source, found.engine, found.global_batch_size) == ("nemo-automodel", "command", 32)
    assert dict(found.adapters) == {"kind": "lora", "rank": 16, "alpha": 32, "target_modules": ["all-linear"]}
    layout = {
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "zero_stage": 3,
        "activation_checkpointing": "full",
        "micro_batch_size": 2,
    }
    assert layout.items() <= found.layout.items()
    assert "data_parallel" not in found.layout


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"peft": None}, {}),
        ({"quantization__load_in_4bit": True}, {"kind": "qlora"}),
        ({"peft__target_modules": ["q_proj", "v_proj"], "peft__alpha": 16}, {"target_modules": ["q_proj", "v_proj"]}),
    ],
)
def test_adapters_are_those_of_peft_and_of_the_weights_beside_them(keys, expected):
    found = read(**keys)
    assert expected.items() <= found.adapters.items()
    assert (bool(found.adapters), found.finetunes) == (keys.get("peft", 1) is not None, True)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"peft__use_dora": True}, "adapters are LoRA's"),
        ({"peft__match_all_linear": True}, "adapters are LoRA's"),
        ({"peft__target_modules": ["*.layers.0.*.q_proj"]}, "beside linear modules of every layer"),
        ({"quantization__load_in_8bit": True}, "weights are in 16 or 4 bits"),
        ({"distributed__ep_size": 8}, "experts are not read"),
        ({"distributed__pp_size": 2}, "pp_size is 1 in a recipe that can be read"),
        ({"distributed__strategy": "megatron_fsdp"}, "strategy is fsdp2 in a recipe that can be read"),
        (
            {"distributed___target_": "nemo_automodel.components.distributed.ddp.DDPManager"},
            "in a recipe that can be read",
        ),
        ({"recipe": "FinetuneRecipeForVLM"}, "in a recipe that can be read"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(keys, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(**keys)
    (problem,) = refused.value.problems
    assert problem.key in [name.replace("__", ".", 1) for name in keys]
    assert problem.fix
