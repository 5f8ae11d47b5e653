"""A Flask request as features are read from it: the template of its route, its path parameters, its user."""

from typing import Final

import flask

from ..http.body import Body
from ..http.request import Request
from ..keys.features import INVALID, UNMATCHED
from ..wsgi.request import WSGIRequest, remote_user
from ..wsgi.url_map import route_template

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
        self.endpoint = UNMATCHED if request.url_rule is None else route_template(request.url_rule.rule)
        # Functions of the application may have removed parameters since the route was found, added some, replaced them
        # by objects, or merged their spellings.
        sent, now = request.environ.get(SENT_PARAMS, {}), request.view_args or {}
        same = {name: value for name, value in now.items() if name not in sent or type(value) is type(sent[name])}
        self.path_params = {**sent, **same}
        cached = vars(request)
        if cached.get("form") or cached.get("files"):
            self.parsed_body = Body.from_form(request.form.items(multi=True))

    def body(self, limit: int) -> object:
        """Read through Flask where a function before ours has read the body already."""
        request = self.framework_request
        if "stream" not in vars(request):
            return super().body(limit)
        length = request.content_length or 0
        content = request.get_data() if length <= limit else b""
        return (content or None) if len(content) == length else INVALID


def flask_user(request: Request) -> str | None:
    """Return the user of Flask-Login, where the application uses it; else the user that the server authenticated.

    The ``Authorization`` header alone is no user: the client chooses its value.
    """
    if current_user is not None and hasattr(flask.current_app, "login_manager") and current_user.is_authenticated:
        return str(current_user.get_id())
    return remote_user(request)
