"""Benchmark of the verifier beside math-verify: `python -m tests.bench.verifier measure`."""
