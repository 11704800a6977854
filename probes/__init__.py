"""Probes: does other people's traffic change a reply? Traffic, axes, the runner, and what its records say.

The room talks to ``targets`` and the common rooms; it never reaches into the engine. Nothing here imports torch:
a probe sees token ids, numpy rows and step records.
"""
