"""Any trainer that is started by a command line with placeholders."""
