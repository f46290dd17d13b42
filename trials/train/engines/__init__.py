"""Engines: one optimizer step of a layout by torch or DeepSpeed, with sharding, gradients, optimizer and pipeline
schedules."""
