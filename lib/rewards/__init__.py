"""Verifiable rewards: functions of a completion, which is judged once for all of them."""
