"""``dashboard`` for Flask: a blueprint that shows the limiter of its application."""

from __future__ import annotations

import flask
from flask import Blueprint, Flask

from ..dashboard.core import Allow, Mount, is_open, redirect_into, respond
from ..limiter.limiter import Limiter
from ..rules.marks import ATTRIBUTE, OWN_PAGE
from .extension import hooks_of
from .hooks import FlaskRequest


def dashboard(limiter: Limiter | None = None, *, allow: Allow | None = None, writes: bool = False) -> Blueprint:
    """Return the dashboard as a blueprint. Limits apply to it only where a rule names its path or view.

    Args:
        limiter: The limiter to show. Default: that of the application's ``RateLimiter``.
        allow: Your function of Flask's request, sync or async, which returns whether the client may see the dashboard.
            Without it, a browser asks for the password that the log has at the start.
        writes: Whether those who see the dashboard may also reset a client, lift its ban and change its limits.

    Returns:
        The blueprint.

    Raises:
        ConfigError: An argument is invalid.
        MissingExtraError: The extra ``dashboard`` is not installed.

    Example:
        app.register_blueprint(dashboard(allow=lambda request: current_user.is_admin), url_prefix="/ratelimit")
    """
    mount = Mount(limiter, allow, writes).check()

    def show(path: str = "") -> flask.Response:
        app: Flask = flask.current_app._get_current_object()  # type: ignore[attr-defined]
        request = FlaskRequest(flask.request._get_current_object())  # type: ignore[attr-defined]
        if not (path or request.path.endswith("/")):
            response = redirect_into(request.path, request.query_string)
        else:
            opens = is_open(mount._replace(allow=allow and app.ensure_sync(allow)).ask(request), request.native)
            shown = limiter or hooks_of(app).limiter
            response = respond(mount, shown, request, path, opens)
        return flask.Response(response.body, response.status, response.headers)

    setattr(show, ATTRIBUTE, OWN_PAGE)
    blueprint = Blueprint("ratelimit", __name__)
    for rule in ("/", "/<path:path>"):
        blueprint.add_url_rule(rule, "dashboard", show, strict_slashes=False, methods=["GET", *["POST"] * writes])
    return blueprint
