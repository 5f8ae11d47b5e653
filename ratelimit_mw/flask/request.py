"""A Flask request as features are read from it: the template of its route, its path parameters, its user."""

import io
from collections.abc import Mapping
from typing import Any, Final

import flask
from flask import has_request_context
from flask.globals import request_ctx
from werkzeug.exceptions import MethodNotAllowed

from ..http.body import Body
from ..http.request import Request
from ..keys.features import UNMATCHED
from ..wsgi.body import read_body
from ..wsgi.request import WSGIRequest, remote_user
from ..wsgi.url_map import route_template, rule_of_path

try:
    from flask_login import current_user
except ImportError:  # optional: an application may identify its users otherwise
    current_user = None


SENT_PARAMS: Final = "ratelimit_mw.flask.params"
"""The key in the environ for the parameters of the path before any function of the application changed them."""


class FlaskRequest(WSGIRequest):
    """A request over Flask's own, which is ``framework_request``."""

    def __init__(self, request: flask.Request) -> None:
        super().__init__(request.environ)
        self.framework_request = request
        rule: Any = request.url_rule
        now: Mapping[str, Any] = request.view_args or {}
        error = request.routing_exception
        if isinstance(error, MethodNotAllowed):
            rule, now = _rule_without_view(request, error)
        self.rule = rule
        self.endpoint = UNMATCHED if rule is None else route_template(rule.rule)
        # Functions of the application may have removed parameters since the route was found, added some, replaced them
        # by objects, or merged their spellings.
        sent = request.environ.get(SENT_PARAMS, {})
        same = {name: value for name, value in now.items() if name not in sent or type(value) is type(sent[name])}
        self.path_params = {**sent, **same}
        cached = vars(request)
        if cached.get("form") or cached.get("files"):
            self.parsed_body = Body.from_form(request.form.items(multi=True), request.files)

    def body(self, limit: int) -> object:
        """Read what Flask keeps of the body where a function before ours has read it already, else the rest of it."""
        request, cached = self.framework_request, vars(self.framework_request)
        if "stream" not in cached:
            return super().body(limit)
        kept = cached.get("_cached_data")
        environ = {**request.environ, "wsgi.input": request.stream if kept is None else io.BytesIO(kept)}
        content = read_body(environ, limit, is_late=True)
        if kept is None:
            cached["stream"] = environ["wsgi.input"]
        return content


def _rule_without_view(request: flask.Request, error: MethodNotAllowed) -> tuple[Any, Mapping[str, Any]]:
    """Return the rule of the path of a 405, and its parameters. Outside its context no rule is known."""
    urls = request_ctx.url_adapter if has_request_context() and request_ctx.request is request else None
    return rule_of_path(urls, error) if urls else (None, {})


def flask_user(request: Request) -> str | None:
    """Return the user of Flask-Login, where the application uses it; else the user that the server authenticated.

    The ``Authorization`` header alone is no user: the client chooses its value.
    """
    if current_user is not None and hasattr(flask.current_app, "login_manager") and current_user.is_authenticated:
        return str(current_user.get_id())
    return remote_user(request)
