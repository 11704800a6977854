from detharness.statistics.counts import unique_and_modal


def test_unique_and_modal():
    assert unique_and_modal([]) == (0, 0)
    assert unique_and_modal([(1, 2), (1, 2), (1, 3)]) == (2, 2)
    assert unique_and_modal(["a", "b"]) == (2, 1)
