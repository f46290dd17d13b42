"""Protocols of calibration, selftest and doctor jobs: their measurements and files, shared by driver and ranks."""
