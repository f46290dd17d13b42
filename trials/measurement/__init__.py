"""Measurement: which steps count, when a throughput is precise, spread between runs, trends, node metrics."""
