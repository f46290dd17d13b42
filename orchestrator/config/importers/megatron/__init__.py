"""Launch scripts of Megatron-LM and Megatron-DeepSpeed, and all options of their parsers."""
