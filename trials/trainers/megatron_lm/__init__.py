"""Megatron-LM: a layout as its options, its launch scripts read back."""
