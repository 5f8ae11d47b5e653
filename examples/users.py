"""Who may sign in to the examples, and who has. A real application asks its database."""

import secrets

_PASSWORDS = {"ann": "sesame", "bob": "lettuce"}
_signed_in: dict[str, str] = {}


def sign_in(name: str, password: str) -> str | None:
    """A token that stands for the user from now on; None for a wrong name or password."""
    if not secrets.compare_digest(_PASSWORDS.get(name, "").encode() or secrets.token_bytes(), password.encode()):
        return None
    token = secrets.token_urlsafe()
    _signed_in[token] = name
    return token


def user_of(authorization: str | None) -> str | None:
    """Whose token it is, in the header ``Authorization: Bearer TOKEN``."""
    return _signed_in.get((authorization or "").removeprefix("Bearer "))
