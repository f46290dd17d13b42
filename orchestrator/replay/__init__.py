"""Replay: the recipe's layout measured again, and a verdict."""
