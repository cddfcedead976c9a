"""GRPO on a GPU beside TRL, Unsloth and vLLM: `make gpu-check`."""
