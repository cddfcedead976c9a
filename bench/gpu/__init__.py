"""GRPO on a GPU beside TRL, Unsloth and vLLM: `python -m bench.gpu`."""
