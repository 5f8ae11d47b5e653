"""A Flask request as features are read from it: its route's template, its path parameters, its user."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import flask

from ..http.body import Body
from ..keys.features import INVALID, UNMATCHED
from ..wsgi.middleware import WSGIRequest

try:
    from flask_login import current_user
except ImportError:  # an application may know its users by other means, or not at all
    current_user = None

__all__ = ["FlaskRequest", "current_user_of", "template_of"]

# As werkzeug.routing reads a rule: <name>, <converter:name>, <converter(arguments):name>.
_PARAMETER: Final = re.compile(r"<(?:[a-zA-Z_]\w*(?:\(.*?\))?:)?([a-zA-Z_]\w*)>", re.ASCII)


class FlaskRequest(WSGIRequest):
    """``flask`` is Flask's own request, which functions of yours are given."""

    def __init__(self, request: flask.Request) -> None:
        super().__init__(request.environ)
        self.flask = request
        self.endpoint = UNMATCHED if request.url_rule is None else template_of(request.url_rule.rule)
        self.path_params = request.view_args or {}
        read = vars(request)
        if read.get("form") or read.get("files"):
            self.parsed_body = Body.of_form(request.form.items(multi=True), self.one_of)

    def body(self, limit: int) -> object:
        """What a function before ours has read is where Flask keeps it."""
        if "stream" not in vars(self.flask):
            return super().body(limit)
        length = self.flask.content_length or 0
        content = self.flask.get_data() if length <= limit else b""
        return (content or None) if len(content) == length else INVALID


@lru_cache(10_000)
def template_of(rule: str) -> str:
    """The template of a URL rule, without converters.

    >>> template_of("/items/<int:id>/<any(small, large):size>")
    '/items/{id}/{size}'
    """
    return _PARAMETER.sub(r"{\1}", rule)


def current_user_of(request: Any) -> str | None:
    """Whom Flask-Login has signed in, where the application uses it; else whom the server has authenticated.

    What a client writes into ``Authorization`` is nobody until somebody has checked it.
    """
    if current_user is not None and hasattr(flask.current_app, "login_manager") and current_user.is_authenticated:
        return str(current_user.get_id())
    return request.native.get("REMOTE_USER") or None
