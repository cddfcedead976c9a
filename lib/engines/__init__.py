"""What runs a model: the transformers and vLLM engines, and the tiny model made from nothing."""
