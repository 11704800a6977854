"""What a person adds to every request is sent as given, and shown nowhere."""

import pytest

from detharness.errors import UsageError
from detharness.targets.endpoint.headers import Secrets, parse_headers


def test_headers_are_read_as_given():
    given = ["X-Api-Key: a:b c", "  cookie :  a=1; b=2\t", "user-agent:me"]
    assert parse_headers(given) == {"x-api-key": "a:b c", "cookie": "a=1; b=2", "user-agent": "me"}
    assert parse_headers([]) == {}


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["x: 1", "s3cret"], "header 2 is not of the form 'Name: value'"),
        (["a b: s3cret"], "header 1 is not of the form"),
        (["x\nevil: s3cret"], "header 1 is not of the form"),
        ([": s3cret"], "header 1 is not of the form"),
        (["Host: s3cret"], "the header 'host' cannot be given"),
        (["Transfer-Encoding: s3cret"], "the header 'transfer-encoding' cannot be given"),
        (["accept-encoding: s3cret"], "the header 'accept-encoding' cannot be given"),
        (["X: s3cret", "x: s3cret"], "the header 'x' is given twice"),
        (["x: s3cret\r\nevil: 1"], "the value of the header 'x' is empty or holds a line break"),
        (["x: s3crét"], "the value of the header 'x' is empty or holds a line break or other than ASCII"),
        (["x:  "], "the value of the header 'x' is empty"),
    ],
)
def test_what_no_request_can_hold_is_refused_without_being_shown(texts, sentence):
    with pytest.raises(UsageError) as refused:
        parse_headers(texts)
    assert str(refused.value).startswith(sentence)
    assert "s3cr" not in str(refused.value)


def test_secrets_are_hidden_whole_and_in_parts():
    secrets = Secrets("sk-key", {"authorization": "Bearer longer-secret", "cookie": "session=0123456789; x=1"})
    said = "sk-key, Bearer longer-secret, longer-secret!, {'session': '0123456789', 'x': 1}"
    assert secrets.conceal(said) == "***, ***, ***!, {'session': '***', 'x': 1}"
    assert secrets.quote("longer-secret\x1b" + "." * 400) == r"***\x1b" + "." * 296 + "..."


def test_a_short_value_is_hidden_in_errors_and_is_a_word_in_replies():
    secrets = Secrets("EMPTY", {})
    assert secrets.conceal("bad key EMPTY") == "bad key ***"
    assert secrets.conceal_in_reply("The set is EMPTY.") == "The set is EMPTY."
    assert Secrets(None, {"x": "12345678"}).conceal_in_reply("x: 12345678") == "x: ***"


def test_a_secret_inside_another_does_not_leave_its_rest():
    assert Secrets("abc", {"x": "abcdefgh"}).conceal("abcdefgh") == "***"
