"""Benchmark of `prepare`: seconds and memory for 17,000 rows of GSM8K's size."""
