"""detharness: the reproducibility and determinism harness for LLM inference.

The rooms and who may import whom are drawn in ``docs/architecture.md``; ``tests/test_import_rules.py``
enforces the picture. This file imports nothing, so that ``detharness --help`` stays instant.
"""

__version__ = "0.1.0"
