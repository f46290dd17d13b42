"""Machines: accelerators, nodes, the links between ranks, memory to keep free."""
