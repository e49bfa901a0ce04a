"""The first paper's experiments: rows, runs and the report."""
