"""Sections of the search file about the search and its launcher, and the file's top level."""
