"""What plans and checks a run from outside it: no stage imports this room."""
