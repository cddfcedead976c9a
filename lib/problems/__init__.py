"""Problems: their sources, generator, filters and splits."""
