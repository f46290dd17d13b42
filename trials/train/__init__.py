"""GPT trainer (docs/trainer.md). The only package that imports torch, deepspeed, megatron, torchtitan,
accelerate and transformers. program.py is a rank's process, trial_run.py its trial."""
