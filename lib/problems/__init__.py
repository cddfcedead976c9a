"""Problems: the canonical record, where records come from, and how they are split and filtered."""
