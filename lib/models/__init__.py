"""Find, download, load, merge and save weights, adapters and tokenizers."""
