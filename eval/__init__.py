"""Generate, grade, verify, compare: a Pass@1 with its coverage, and proof that outputs did not move.

Nothing here imports torch while it is being imported, and grading never does.
"""
