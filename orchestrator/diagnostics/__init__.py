"""Diagnostic jobs on the user's cluster: selftest, calibration, doctor."""
