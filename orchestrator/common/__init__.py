"""Helpers without a search: timeouts, umask, process identity, code snapshots, private temporary folders, machine
load."""
