"""The base of every room: user errors, plugins, and the process of a stage."""
