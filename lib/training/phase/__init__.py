"""What every phase shares: the road from start to outputs, and what it meets on the way."""
