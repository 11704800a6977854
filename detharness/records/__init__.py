"""What a run leaves behind: canonical JSON, digests, append-only JSONL, run folders, the environment.

Everyone may import this room; it imports ``detharness.errors`` and nothing else of ours. No clock, host
name or path of the machine may enter a manifest or a report through it.
"""
