"""Parlay's own trainer: its keys of the search file, and DeepSpeed's configuration in a recipe."""
