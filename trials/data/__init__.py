"""Training data: Megatron's indexed datasets."""
