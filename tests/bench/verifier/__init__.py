"""Benchmark of the verifier, side by side with math-verify: `python -m tests.bench.verifier measure`."""
