"""Rewards of completions: `rollout` judges a completion once, and rewards are functions of that.

`stacks` has a file for each named stack; `functions` finds rewards by name and scores a batch.
"""
