"""Bit probes of this host's kernels, and the certificate that keeps what they found.

Tests prove the kernels where they run; a certificate proves them on the machine of whoever uses them, once per CPU,
library versions and kernel sources.
"""

from detharness.kernels.certify.certificate import Certificate, certify, require_certificate

__all__ = ["Certificate", "certify", "require_certificate"]
