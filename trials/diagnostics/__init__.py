"""Diagnostic jobs (calibration, selftest, doctor): their measurements and files, shared by driver and ranks."""
