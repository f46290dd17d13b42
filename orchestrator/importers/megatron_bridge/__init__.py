"""Reader of the overrides of Megatron-Bridge's recipes."""
