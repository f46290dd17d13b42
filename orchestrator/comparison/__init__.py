"""Comparison of two recipes or searches, by runs and measurement sessions."""
