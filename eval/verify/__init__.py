"""Whether a run's outputs still are what they were: digests again, the root, and cells asked again."""
