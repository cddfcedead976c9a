"""Training: TRL's trainers, set up from params."""
