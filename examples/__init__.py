"""Uses of the library that no stage needs."""
