"""Fabric check: times the collectives of a search's group shapes, each group by itself."""
