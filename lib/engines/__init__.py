"""Engines that generate: transformers, vLLM here, vLLM servers."""
