"""Proof that a layout took effect, and the software and hardware it was measured on."""
