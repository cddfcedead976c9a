"""What every training phase shares: arguments, checkpoints, validation, tracking, ranks."""
