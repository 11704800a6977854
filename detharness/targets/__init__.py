"""What can be probed: one protocol, one module per kind of target. Imports the engine lazily.

Probes, evaluations, benchmarks and baselines talk to this room and never to engine internals.
"""
