"""A package a trainer: its rules, its start, its log, a layout as its arguments or configuration.
Torch-free."""
