"""reckon's library: imported from the checkout, never installed (docs/architecture.md).

Floors, an arrow may only point down (contract in pyproject.toml):
training -> evaluation, export -> engines -> objectives -> problems, prompts, verifier, params ...
"""
