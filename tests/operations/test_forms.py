"""The JSON of changes, which commands and the service share."""

from ratelimit_mw.operations.forms import client_json


def test_a_change_names_its_client_in_words() -> None:
    found = client_json("login", {"ip": "192.0.2.7"}, removed=True)
    assert found == {"rule": "login", "client": "ip=192.0.2.7", "removed": True}
