"""Engines: one optimizer step of a layout by torch, DeepSpeed or megatron-core, with sharding, gradients, optimizer and
pipeline schedules."""
