"""The users of the examples. A real application uses its database."""

import secrets

_PASSWORDS = {"ann": "sesame", "bob": "lettuce"}
_signed_in: dict[str, str] = {}


def sign_in(name: str, password: str) -> str | None:
    """Return a new token of the user, or None for a wrong name or password."""
    if not secrets.compare_digest(_PASSWORDS.get(name, "").encode() or secrets.token_bytes(), password.encode()):
        return None
    token = secrets.token_urlsafe()
    _signed_in[token] = name
    return token


def user_of(authorization: str | None) -> str | None:
    """Return the user of the header ``Authorization: Bearer TOKEN``."""
    return _signed_in.get((authorization or "").removeprefix("Bearer "))
