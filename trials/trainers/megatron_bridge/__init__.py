"""NeMo Megatron-Bridge: a layout as overrides of its recipes. It runs no trials."""
