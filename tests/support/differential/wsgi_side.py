"""Flask and a plain WSGI application that report differences, and the servers that have no command of their own."""

import sys
from typing import Any

import flask
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.wsgi import RateLimitMiddleware

from .echo import each_alone, report, settings, templates_of, totals
from .paths import paths_by_hand
from .readings import by_hand, in_werkzeug, merged
from .words import TOTALS

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# The rule of Flask and the template as the limiter writes it.
TEMPLATES = {
    "/login": "/login",
    "/items/<id>": "/items/{id}",
    "/files/<path:rest>": "/files/{rest}",
    "/<path:rest>": "/{rest}",
    "/": "/",
}


def with_override(app: Any) -> Any:
    """Return a WSGI application that takes the method of a POST from a header, as many applications do."""

    def start(environ: Any, start_response: Any) -> Any:
        method = environ.get("HTTP_X_HTTP_METHOD_OVERRIDE", "").upper()
        if method in METHODS and environ["REQUEST_METHOD"] == "POST":
            environ["REQUEST_METHOD"] = method
        return app(environ, start_response)

    return start


_app = flask.Flask("differential")


def flask_view(template: str) -> Any:
    pattern = "/files/**" if template.startswith("/files") else template

    def view(**parameters: str) -> Any:
        if flask.request.path == TOTALS:
            return totals()
        readings = in_werkzeug(flask.request)
        readings["endpoint"] = [template]
        if "id" in parameters:
            readings["path:id"] = [parameters["id"]]
        return "", 200, report([pattern], flask.request.method, readings)

    return view


for _rule, _template in TEMPLATES.items():
    _app.add_url_rule(_rule, _template, flask_view(_template), methods=METHODS)
_blueprint = flask.Blueprint("api", __name__, url_prefix="/api")
_blueprint.add_url_rule("/things/<name>", "things", flask_view("/api/things/{name}"), methods=METHODS)
_app.register_blueprint(_blueprint)
_app.wsgi_app = with_override(_app.wsgi_app)  # type: ignore[method-assign]
RateLimiter(_app, settings=settings())
in_flask = each_alone(_app)


@Request.application
def _plain(request: Request) -> Response:
    if request.path == TOTALS:
        return Response(totals())
    environ = request.environ
    headers = {
        name: [environ[key]] for name, key in (("cookie", "HTTP_COOKIE"), ("x-key", "HTTP_X_KEY")) if key in environ
    }
    readings = merged(in_werkzeug(request).items(), by_hand(headers, environ["QUERY_STRING"]).items())
    paths = paths_by_hand(environ["PATH_INFO"].encode("latin-1"))
    del readings["path"]
    return Response(headers=report(templates_of(paths), request.method, readings))


plain = each_alone(RateLimitMiddleware(_plain, settings=settings(routes=False)))


class Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None: ...


if __name__ == "__main__":  # APP PORT
    _served = {"in_flask": in_flask, "plain": plain}[sys.argv[1]]
    make_server("127.0.0.1", int(sys.argv[2]), _served, threaded=True, request_handler=Quiet).serve_forever()
