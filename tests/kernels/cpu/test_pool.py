"""The library's threads: a fork, calls from several Python threads, and an idle process that does not spin."""

import os
import resource
import threading
import time

import pytest
import torch


def product(kernels):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 576, generator=generator)
    packed = kernels.pack_linear([torch.randn(500, 576, generator=generator)], [None])
    return x, packed


def test_calls_from_several_python_threads(kernels, threads):
    x, packed = product(kernels)
    with threads(2):
        expected = kernels.linear(x, packed)
        wrong = []

        def call():
            torch.set_num_threads(2)
            for _ in range(50):
                if not torch.equal(kernels.linear(x, packed), expected):
                    wrong.append(1)

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong


# Python 3.12 and later warn of any fork beside threads, because of what the child may not do; here it is the test.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(kernels, threads):
    x, packed = product(kernels)
    with threads(2):
        expected = kernels.linear(x, packed)
        child = os.fork()
        if child == 0:  # No assertion may unwind into pytest here.
            good = all(torch.equal(kernels.linear(x, packed), expected) for _ in range(20))
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(kernels.linear(x, packed), expected)


def test_idle_threads_sleep(kernels, threads):
    x, packed = product(kernels)
    with threads(2):
        kernels.linear(x, packed)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.3)
        after = resource.getrusage(resource.RUSAGE_SELF)
    # A spinning worker would have used 0.3 s; the bound leaves room for the interpreter.
    assert after.ru_utime - before.ru_utime < 0.1
