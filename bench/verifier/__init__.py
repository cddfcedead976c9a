"""Benchmark of the verifier beside math-verify: `python -m bench.verifier measure`."""
