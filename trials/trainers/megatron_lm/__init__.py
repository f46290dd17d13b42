"""Megatron-LM: a layout as its options."""
