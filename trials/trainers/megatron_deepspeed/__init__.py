"""Megatron-DeepSpeed: a layout as its options and its DeepSpeed configuration."""
