"""The search as one HTML page (docs/report.md): data, sentences, table, page."""
