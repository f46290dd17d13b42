"""Sections of a search file about measuring, data and the trainer."""
