"""Studies: variants of the committed params over seeds, and the claim that they test."""
