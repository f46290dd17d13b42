"""Training data: token files, their writer and reader, tokenizers."""
