"""The one tree of errors a person can cause. Every message says what was wrong, where, and what to do.

The command line prints the message alone and exits with 2; ``--debug`` shows the traceback. Anything that
is not a ``DetharnessError`` is a bug of ours and keeps its traceback.
"""


class DetharnessError(Exception):
    """Base class: the person who called can mend the cause."""


class UsageError(DetharnessError):
    """An option, a file handed in, or an output folder that cannot be used as asked."""


class CheckpointError(DetharnessError):
    """A model folder, GGUF file, tokenizer or chat template that is missing, damaged or unsupported."""


class RequestError(DetharnessError):
    """A request the engine refuses: too long, empty, or a sampling value it does not support."""


class CapacityError(DetharnessError):
    """The block pool cannot hold even one request."""


class KernelError(DetharnessError):
    """A kernel that is not certified on this host, or operands it does not support."""


class BackendWarning(UserWarning):
    """The invariant kernels run on a slower backend than this host should have; their report names it."""
