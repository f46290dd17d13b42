"""Selftest program: a plain GPT, and layout after layout compared with it."""
