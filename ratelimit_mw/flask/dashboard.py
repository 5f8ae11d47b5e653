"""``dashboard`` for Flask: a blueprint that shows the limiter of its application."""

from __future__ import annotations

from typing import Final

import flask
from flask import Blueprint, Flask

from ..dashboard.core import Mount, dashboard_by, is_open, respond
from ..rules.marks import ATTRIBUTE, OWN_PAGE
from .extension import hooks_of
from .hooks import FlaskRequest


def _blueprint(mount: Mount) -> Blueprint:
    def show(path: str = "") -> flask.Response:
        app: Flask = flask.current_app._get_current_object()  # type: ignore[attr-defined]
        request = FlaskRequest(flask.request._get_current_object())  # type: ignore[attr-defined]
        allow = mount.allow and app.ensure_sync(mount.allow)
        opens = is_open(mount._replace(allow=allow).ask(request), request.native)
        response = respond(mount, mount.limiter or hooks_of(app).limiter, request, path, opens)
        return flask.Response(response.body, response.status, response.headers)

    setattr(show, ATTRIBUTE, OWN_PAGE)
    blueprint = Blueprint("ratelimit", __name__)
    methods = ["GET", *["POST"] * mount.writes]
    # The page has relative URLs, so it needs its slash in an application with ``strict_slashes = False`` too.
    blueprint.add_url_rule("/", "dashboard", show, methods=methods, strict_slashes=True)
    blueprint.add_url_rule("/<path:path>", "dashboard", show, methods=methods)
    return blueprint


dashboard: Final = dashboard_by(_blueprint)
