"""Engines: one step of a layout by torch, DeepSpeed, megatron-core or torchtitan, with sharding,
gradients, optimizer and pipeline schedules."""
