"""SHA-256, checked against the test vectors of FIPS 180-4."""

from detharness.records.digests import sha256_bytes, sha256_file, sha256_value

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
A_MILLION = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"


def test_published_vectors(tmp_path):
    assert sha256_bytes(b"abc") == ABC
    (tmp_path / "a").write_bytes(b"a" * 1_000_000)
    assert sha256_file(tmp_path / "a") == A_MILLION


def test_a_value_is_digested_in_its_canonical_form():
    assert sha256_value({"b": 1, "a": 2.5}) == sha256_bytes(b'{"a":2.5,"b":1}')
