"""Intervals, tests, survival and counts: one place for every number that carries a claim.

Everyone may import this room; it imports nothing of ours, and only the standard library. Each formula names
its source. Counts go in as they are: nothing is rounded, and no data means an error, never a made-up
number.
"""
