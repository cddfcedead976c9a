"""Export of a checkpoint: one complete model with its card, verified and ready for the Hub."""
