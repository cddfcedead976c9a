"""What a completion earns: it is judged once (`rollout`), and rewards are functions of that.

`stacks` has a file per named stack, and `functions` finds rewards by name and scores a batch.
"""
