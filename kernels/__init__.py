"""Operators under the row-purity contract, and the library defaults they are measured against.

May import: torch, numpy, ``detharness.records``, ``detharness.errors``. May not know about engines, requests,
checkpoints or probes. ``kernel_set(name)`` in ``contract`` hands out the sets by name.
"""
