"""Layouts: their fields, canonical form and key, tables of many, and the workload they belong to."""
