"""Replay: the recipe's layout measured again, and a verdict. Comparison of two recipes or
searches, by runs and measurement sessions."""
