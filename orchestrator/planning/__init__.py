"""Plan, explanation and forecast: what is expected before anything has run, and what earlier searches teach."""
