"""The reference engine: requests in, tokens out, every step recorded. Imports kernels and checkpoints, nothing above.

This file and ``params`` import no torch, so that callers can build requests without loading it.
"""
