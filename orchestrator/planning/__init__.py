"""Plan, explanation, forecast and warm start of a search, before anything has run."""
