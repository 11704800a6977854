"""From a run's records to its verdicts and numbers. Loads no torch, and never touches the generations."""
