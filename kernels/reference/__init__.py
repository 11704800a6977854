"""Naive fp64 oracles, one module per operator: what a kernel should have computed, slow and clear.

For tests only. Nothing here shares code with the kernels it judges, and nothing here is row-pure or meant to be.
"""
