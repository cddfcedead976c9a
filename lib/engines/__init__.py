"""Engines that generate: transformers and vLLM; and the tiny model made from nothing."""
