"""Verifiable rewards: each completion is judged once, and every reward is a function of the result.

`rollout` has the judged completion (`Rollout`). `stacks` has one file for each named set of rewards
(a stack). `functions` finds rewards by name and scores batches.
"""
