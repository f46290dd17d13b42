"""A user's fine-tuning with TRL, as its documentation writes one: model and examples lie beside the script."""

from pathlib import Path

from datasets import load_dataset
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config

here = Path(__file__).parent
config, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
data = load_dataset("json", data_files=str(here / "examples.jsonl"), split="train")
SFTTrainer(str(here / "model"), config, train_dataset=data, peft_config=get_peft_config(model)).train()
