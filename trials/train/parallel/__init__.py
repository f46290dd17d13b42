"""Process groups, collectives, tensor-parallel layers and the rank's device."""
