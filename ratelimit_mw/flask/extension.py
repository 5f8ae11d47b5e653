"""The extension object: where its settings come from, and the hooks through which Flask calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from flask import Flask, current_app, got_request_exception, request_finished

from ..decision import Verdict
from ..errors import ConfigError, placed
from ..http.features import checked_functions
from ..http.limiter import HttpLimiter, HttpOptions, SettingsSource
from ..limiter.limiter import Limiter
from ..rules.callables import checked_call
from ..settings.framework import SETTING, check_slips
from .commands import EXTENSION, commands
from .hooks import FlaskHooks
from .request import current_user_of

__all__ = ["RateLimiter"]


class RateLimiter:
    """Decides every request to a Flask application by its rules and by the decorators on its views.

    ``RateLimiter(app)``, or ``init_app(app)`` in a factory. The rules are in ``settings`` (a file, a dictionary or
    ``Settings``), in a ``limiter``, or in ``app.config["RATELIMIT_MW"]`` (any of them); none are needed
    where decorators say all. ``features`` are your own functions of the Flask request, by feature name; ``rejection``
    is your own answer: a function of the Flask request and the verdict that returns what a view may return, or a
    ``Rejection``. ``trusted_proxies``, ``headers`` and the other HTTP settings may be given here too.

    Views find the verdict in ``flask.g.ratelimit``. Raises ``ConfigError`` for what cannot work.
    """

    def __init__(
        self,
        app: Flask | None = None,
        settings: SettingsSource | None = None,
        *,
        limiter: Limiter | None = None,
        features: Mapping[str, Callable[[Any], Any]] | None = None,
        rejection: Callable[[Any, Verdict], Any] | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        self._settings = settings
        self._limiter = limiter
        self._features = features or {}
        self._rejection = rejection
        self._options = options
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Put limits on this application. Its views may still come; its settings are checked now."""
        if EXTENSION in app.extensions:
            raise ConfigError(f"the application {app.name!r} has a RateLimiter already")
        enforcer = FlaskHooks(app, self._guard(app))
        app.extensions[EXTENSION] = enforcer
        app.before_request(enforcer.decide)
        app.after_request(enforcer.add_headers)
        app.teardown_request(enforcer.end)
        request_finished.connect(enforcer.note_response, app)
        got_request_exception.connect(enforcer.explain, app)
        app.cli.add_command(commands)

    def check(self, app: Flask | None = None) -> None:
        """Find the mistakes in decorators now, once all views are there; else the first request finds them.

        ``ConfigError`` for a name that stands twice, for an exemption from a rule that nobody has, and for a setting
        that replaces one. Views that are added after it are read, and checked, when the first request comes.
        """
        _enforcer_of(app).views()

    @property
    def limiter(self) -> Limiter:
        """The limiter of the application at hand, inside its context."""
        return _enforcer_of(None).limiter

    def _source(self, app: Flask) -> tuple[SettingsSource | None, Limiter | None]:
        """The settings or the limiter of an application, from the one place where they stand."""
        given = app.config.get(SETTING)
        if self._settings is not None or self._limiter is not None:
            if given is not None:
                raise ConfigError(
                    f"settings stand in RateLimiter(...) and in app.config[{SETTING!r}]; keep one of them"
                )
            return self._settings, self._limiter
        if given is None:
            check_slips(app.config)
            return {}, None
        return (None, given) if isinstance(given, Limiter) else (given, None)

    def _guard(self, app: Flask) -> HttpLimiter:
        settings, limiter = self._source(app)
        own = {name: _of_flask(app, read) for name, read in checked_functions(self._features).items()}
        reject = self._rejection
        if callable(reject):
            with placed("rejection"):
                reject = app.ensure_sync(checked_call(reject, "the request", "the verdict"))
        return HttpLimiter(settings, limiter, own, reject, current_user_of, self._options, routes=True)


def _of_flask(app: Flask, read: Any) -> Any:
    """A function of the Flask request, sync or async, as one that the package's own request is given to."""
    called = app.ensure_sync(read)
    return lambda request: called(request.flask)


def _enforcer_of(app: Flask | None) -> FlaskHooks:
    app = app or current_app
    enforcer = app.extensions.get(EXTENSION)
    if enforcer is None:
        raise ConfigError(f"the application {app.name!r} has no RateLimiter: call init_app(app) first")
    return enforcer  # type: ignore[no-any-return]
