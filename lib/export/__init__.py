"""Export: a model that leaves the pipeline complete and checked."""
