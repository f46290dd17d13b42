"""Figures of the report, drawn by plotly."""
