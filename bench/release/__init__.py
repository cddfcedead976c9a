"""`make release` writes every published number; `make release-check` compares the files."""
