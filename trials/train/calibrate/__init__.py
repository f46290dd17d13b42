"""Calibration program: measures what ranks reach in compute, memory and links."""
