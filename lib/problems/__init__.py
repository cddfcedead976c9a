"""Problems: their canonical record, their sources, filters and splits."""
