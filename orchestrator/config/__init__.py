"""Search files: from search.yaml to SearchSpec, and the first file of a new user."""
