"""The base of all other packages: user errors, plugins, git, and the process of a stage."""
