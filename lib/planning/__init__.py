"""Plan and check a run from outside; no stage imports this room."""
