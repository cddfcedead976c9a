"""Training and inference without stages."""
