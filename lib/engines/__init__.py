"""Engines that generate (transformers, vLLM), model loading and saving, and the tiny model."""
