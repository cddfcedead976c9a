"""What every room stands on: errors for users, plugins, and the process that a stage runs in."""
