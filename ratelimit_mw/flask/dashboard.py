"""``dashboard`` for Flask: a blueprint that shows the limiter of its application."""

from __future__ import annotations

from typing import Final

import flask
from flask import Blueprint, Flask

from ..dashboard.core import Mount, dashboard_by, is_open, redirect_into, respond
from ..rules.marks import ATTRIBUTE, OWN_PAGE
from .extension import hooks_of
from .hooks import FlaskRequest


def _blueprint(mount: Mount) -> Blueprint:
    def show(path: str = "") -> flask.Response:
        app: Flask = flask.current_app._get_current_object()  # type: ignore[attr-defined]
        request = FlaskRequest(flask.request._get_current_object())  # type: ignore[attr-defined]
        if not (path or request.path.endswith("/")):
            response = redirect_into(request.path, request.query_string)
        else:
            opens = is_open(
                mount._replace(allow=mount.allow and app.ensure_sync(mount.allow)).ask(request), request.native
            )
            shown = mount.limiter or hooks_of(app).limiter
            response = respond(mount, shown, request, path, opens)
        return flask.Response(response.body, response.status, response.headers)

    setattr(show, ATTRIBUTE, OWN_PAGE)
    blueprint = Blueprint("ratelimit", __name__)
    for rule in ("/", "/<path:path>"):
        blueprint.add_url_rule(rule, "dashboard", show, strict_slashes=False, methods=["GET", *["POST"] * mount.writes])
    return blueprint


dashboard: Final = dashboard_by(_blueprint)
