"""The extension object ``RateLimiter``: it finds the settings and registers the hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from flask import Flask, current_app, got_request_exception, request_finished

from ..decision import Verdict
from ..errors import ConfigError, placed
from ..http.features import checked_functions
from ..http.limiter import HttpLimiter
from ..limiter.limiter import Limiter
from ..rules.declaration import checked_call
from ..settings import HttpOptions, SettingsSource
from ..settings.framework import SETTING, check_slips
from .commands import EXTENSION, commands
from .hooks import FlaskHooks
from .request import flask_user


class RateLimiter:
    """Limit the requests to a Flask application.

    Views find the verdict in ``flask.g.ratelimit``. Without any settings only the decorators on views apply.

    Args:
        app: The application; None if you call ``init_app`` later.
        settings: A settings file, a dictionary or ``Settings``. The default is ``app.config["RATELIMIT_MW"]``.
        limiter: A limiter that you have built, in place of ``settings``.
        features: Your functions of Flask's request, sync or async, by feature.
        rejection: Your function of Flask's request and the verdict. It returns a ``Rejection``, or what views return.
        **options: HTTP settings such as ``trusted_proxies`` and ``headers``, which override those of ``settings``.

    Raises:
        ConfigError: An argument or a rule cannot work.

    Example:
        RateLimiter(app, settings={"rules": [{"name": "api", "limits": "100/minute"}]})
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
        """Limit the requests to this application. Views may be added later; the settings are checked now.

        Args:
            app: The application.

        Raises:
            ConfigError: An argument or a rule cannot work, or the application has a ``RateLimiter`` already.
        """
        if EXTENSION in app.extensions:
            raise ConfigError(f"the application {app.name!r} has a RateLimiter already")
        hooks = app.extensions[EXTENSION] = FlaskHooks(app, self._build_limits(app))
        app.before_request(hooks.decide)
        app.after_request(hooks.add_headers)
        app.teardown_request(hooks.end)
        request_finished.connect(hooks.end_with_response, app)
        got_request_exception.connect(hooks.explain, app)
        app.cli.add_command(commands)

    def check(self, app: Flask | None = None) -> None:
        """Check all decorators now, after the last view is added. Without it the first request checks them.

        Args:
            app: The application; None for the current one.

        Raises:
            ConfigError: A decorator cannot work, or a setting names a rule that no decorator gives.
        """
        _hooks_of(app).read_views()

    @property
    def limiter(self) -> Limiter:
        """The limiter of the current application, inside its context."""
        return _hooks_of(None).limiter

    def _source(self, app: Flask) -> tuple[SettingsSource | None, Limiter | None]:
        """Return the settings or the limiter, from the one place that has them."""
        configured = app.config.get(SETTING)
        if self._settings is not None or self._limiter is not None:
            if configured is not None:
                raise ConfigError(
                    f"RateLimiter(...) and app.config[{SETTING!r}] both have settings. Remove one of them"
                )
            return self._settings, self._limiter
        if configured is None:
            check_slips(app.config)
            return {}, None
        return (None, configured) if isinstance(configured, Limiter) else (configured, None)

    def _build_limits(self, app: Flask) -> HttpLimiter:
        settings, limiter = self._source(app)
        features = {name: app.ensure_sync(read) for name, read in checked_functions(self._features).items()}
        reject = self._rejection
        if callable(reject):
            with placed("rejection"):
                reject = app.ensure_sync(checked_call(reject, "the request", "the verdict"))
        return HttpLimiter(settings, limiter, features, reject, {"user": flask_user}, self._options, routes=True)


def _hooks_of(app: Flask | None) -> FlaskHooks:
    app = app or current_app
    hooks: FlaskHooks | None = app.extensions.get(EXTENSION)
    if hooks is None:
        raise ConfigError(f"the application {app.name!r} has no RateLimiter. Call init_app(app) first")
    return hooks
