"""The GPT: a pipeline stage's chunk of it, and the initial weights."""
