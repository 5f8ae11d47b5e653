"""The token that opens what has no other check."""

from base64 import b64encode

from tables import each

from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.token import has_token, start_token
from ratelimit_mw.wsgi.exchange import WSGIRequest

TOKEN = "correct-horse-battery"
BASIC = b64encode(f"ann:{TOKEN}".encode()).decode()
FORMS = each("is_asgi", [True, False])


def request_with(is_asgi: bool, *lines: str) -> Request:
    if is_asgi:
        headers = [(b"authorization", line.encode("latin-1")) for line in lines]
        return ASGIRequest({"type": "http", "client": ("127.0.0.1", 5), "headers": headers})
    return WSGIRequest({"REMOTE_ADDR": "127.0.0.1", **({"HTTP_AUTHORIZATION": lines[0]} if lines else {})})


@FORMS
@each(
    ("line", "expected"),
    [
        *((line, True) for line in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {BASIC}")),
        *((line, False) for line in ("", "Bearer", "Bearer wrong", "Bearer \xe9", "Basic x", "Basic \xe9")),
        *((line, False) for line in (TOKEN, f"Basic {TOKEN}")),
    ],
)
def test_a_request_has_the_token(is_asgi: bool, line: str, expected: bool) -> None:
    """It is sent as it is, or as the password of any user. A local program without it is like any other client."""
    assert has_token(request_with(is_asgi, line), TOKEN, "bearer", "basic") is expected
    assert not has_token(request_with(is_asgi), TOKEN, "bearer", "basic")


def test_a_scheme_may_be_closed() -> None:
    """A browser adds a password to each request, even to one of another page. The admin API takes none."""
    assert not has_token(request_with(True, f"Basic {BASIC}"), TOKEN, "bearer")
    assert not has_token(request_with(True, *[f"Bearer {TOKEN}"] * 2), TOKEN, "bearer")


def test_the_token_of_a_process_stays() -> None:
    """It cannot be guessed."""
    assert start_token() == start_token()
    assert len(start_token()) == 32
