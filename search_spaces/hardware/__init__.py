"""Machines: accelerators, nodes, the links between ranks, memory to be left free."""
