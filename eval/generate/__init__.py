"""Asking a target: cells, their requests, a record per attempt, and resuming where a run stopped."""
