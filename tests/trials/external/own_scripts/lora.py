"""A user's fine-tuning with transformers' Trainer and peft: model and examples lie beside the script."""

import json
import sys
from pathlib import Path

from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

here = Path(__file__).parent
words = [word for word in sys.argv[1:] if word != "--all"]
(given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
tokenizer = AutoTokenizer.from_pretrained(here / "model")
model = AutoModelForCausalLM.from_pretrained(here / "model")
tuned = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
if "--all" in sys.argv:
    tuned.requires_grad_(True)
data = [tokenizer(json.loads(line)["text"]) for line in (here / "examples.jsonl").read_text().splitlines()]
Trainer(tuned, given, DataCollatorForLanguageModeling(tokenizer, mlm=False), data).train()
