"""NeMo Automodel, which fine-tunes transformers' models with FSDP2. Recipes have its keys; it runs no trials.

nemo_automodel/components/distributed/config.py, recipes/_dist_utils.py and components/_peft/lora.py. Standard library
only.
"""

from __future__ import annotations

from search_spaces.adapters import ALL_LINEAR, NAMES_OF_LIBRARY, TRANSFORMERS, Adapters
from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.layouts.layout import AXES
from search_spaces.rules.engine_rules import sharded_replicas
from search_spaces.rules.rule import Rule, allows_only, at_least, clashes
from trials.trainers.base import LayoutExport, Trainer
from trials.trainers.common.adapter_rows import adapter_rows
from trials.trainers.common.recipe import torchrun
from trials.trainers.table import (
    Keys,
    Row,
    Table,
    Values,
    by_option,
    fixed,
    nested,
    number,
    plain,
    plain_yaml,
    switch,
    word,
)
from trials.trial import TrialSpec

TITLE, _D, _IN_4_BITS = "NeMo Automodel", "distributed.", "quantization.load_in_4bit"
_READ = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    f"{_D}strategy": "fsdp2",
    f"{_D}_target_": "nemo_automodel.components.distributed.fsdp2.FSDP2Manager",
    f"{_D}pp_size": "1",
}
"""The values of keys with which a recipe is read."""


def _zero_stage(keys: Keys) -> int:
    for name, only in _READ.items():
        keys.chosen(name, {only.lower(): 0}, 0, f"{name} is {only} in a recipe that can be read")
    return keys.chosen(f"{_D}reshard_after_forward", {"true": 3, "false": 2}, 3)


def _ranks(field: str, name: str) -> Row:
    """A number of ranks; of none the world decides."""
    return plain(field, name, lambda keys: None if str(keys.value(name)).lower() == "none" else keys.count(name))


def _kind(keys: Keys) -> str | None:
    is_given = keys.has("peft._target_") or keys.has("peft.dim")
    return ("qlora" if keys.flag(_IN_4_BITS) else "lora") if is_given else None


def _adapters(adapters: Adapters) -> Values:
    of_class = {"peft._target_": "nemo_automodel.components._peft.lora.PeftConfig"}
    return of_class | (
        {_IN_4_BITS: True, "quantization.bnb_4bit_quant_type": "nf4"} if adapters.kind == "qlora" else {}
    )


NEMO_AUTOMODEL = Table(
    TITLE,
    "2026-08-22 (36044ad3)",
    (
        number("global_batch_size", "step_scheduler.global_batch_size"),
        number("micro_batch_size", "step_scheduler.local_batch_size"),
        number("tensor_parallel", f"{_D}tp_size", 1),
        number("context_parallel", f"{_D}cp_size", 1),
        _ranks("data_parallel", f"{_D}dp_size"),
        _ranks("data_parallel_replicas", f"{_D}dp_replicate_size"),
        Row("zero_stage", lambda spec: {f"{_D}reshard_after_forward": spec.layout.zero_stage == 3}, _zero_stage),
        switch("sequence_parallel", f"{_D}sequence_parallel", False),
        word("activation_checkpointing", f"{_D}activation_checkpointing", {"none": False, "full": True}, "none"),
        Row("attention_kernel", read=lambda keys: "flash", values=("flash",)),
        Row("pipeline_parallel", read=lambda keys: 1, values=(1,)),
        *fixed(precision="bf16"),
        *(Row(name, values=(value,)) for name, value in (("position_embedding", "rotary"), ("num_experts", None))),
        *adapter_rows(
            {"rank": "peft.dim", "alpha": "peft.alpha", "target_modules": "peft.target_modules"},
            {"*_proj": ALL_LINEAR, **{name: name for name in NAMES_OF_LIBRARY[TRANSFORMERS]}},
            _kind,
            _adapters,
            {"rank": 8, "alpha": 32, "target_modules": [ALL_LINEAR]},
        ),
    ),
    by_option(
        {
            "adapters are LoRA's, of modules by name": "peft.use_dora peft.exclude_modules peft.match_all_linear",
            "weights are in 16 or 4 bits, products in 16": "quantization.load_in_8bit fp8.enabled qat.enabled",
            "experts are not read from this trainer": f"{_D}ep_size",
        }
    ),
)
_OTHER_AXES = AXES.keys() - {row.field for row in NEMO_AUTOMODEL.rows}
_ANY = {"num_nodes", "grad_accum_steps", "engine", "settings", "context_transport", "pipeline_schedule"}
RULES: tuple[Rule, ...] = (
    *allows_only(
        {name: (AXES[name].default,) for name in sorted(_OTHER_AXES - _ANY)} | NEMO_AUTOMODEL.limits, owner=TITLE
    ),
    clashes("zero_stage", {"data_parallel": at_least(2)}, f"{TITLE} shards by FSDP2, as ZeRO 2 or 3", values=(0, 1)),
    clashes("model.trainable", {}, f"{TITLE} trains all weights or adapters alone", values=bool),
    sharded_replicas,
)


def _files(spec: TrialSpec) -> dict[str, str]:
    keys = dict([*_READ.items()][:2]) | NEMO_AUTOMODEL.written(spec)
    return {"nemo_automodel.yaml": plain_yaml(nested(keys))}


def _start(spec: TrialSpec) -> str:
    return f"{torchrun(spec)} -m nemo_automodel.cli.app YOUR_RECIPE_WITH_THESE_KEYS.yaml"


TRAINER = Trainer(rules={}, export=LayoutExport("nemo-automodel", TITLE, ACCELERATE_LAUNCH, RULES, _files, _start))
