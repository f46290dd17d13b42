"""What calibration, selftest and doctor jobs measure and write, shared by the driver and the ranks."""
