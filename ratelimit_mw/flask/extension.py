"""The extension object ``RateLimiter``: it finds the settings and registers the hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from flask import Flask, current_app

from ..decision import Verdict
from ..errors import ConfigError
from ..http.functions import FeatureFunctions, checked_functions
from ..http.limits import HttpLimiter
from ..limiter.limiter import Limiter
from ..settings import SETTING, HttpOptions, SettingsDict, SettingsSource, check_slips
from .hooks import EXTENSION, FlaskHooks, flask_user


class RateLimiter:
    """Limit the requests to a Flask application.

    Views find the verdict in ``flask.g.ratelimit``. Without any settings only the decorators on views apply.

    Args:
        app: The application; None if you call ``init_app`` later.
        settings: A settings file, a dictionary or ``Settings``. The default is ``app.config["RATELIMIT_MW"]``.
        limiter: A limiter that you have built, instead of ``settings``.
        features: Your functions of Flask's request by feature, sync or async, or one that returns a mapping.
        rejection: Your function of Flask's request and the verdict. It returns a ``Rejection``, or what views return.
        **options: Settings such as ``limits``, ``store`` and ``trusted_proxies``, which override those of ``settings``.

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
        features: FeatureFunctions | None = None,
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
        given: object = app
        if not isinstance(given, Flask):
            expected = 'expected RateLimiter(app, settings="ratelimit.toml"), with an application of Flask'
            raise ConfigError(f"{expected}; got {given!r}")
        if EXTENSION in app.extensions:
            raise ConfigError(f"the application {app.name!r} has a RateLimiter already")
        app.extensions[EXTENSION] = FlaskHooks(app, self._build_http_limiter(app))

    def check(self, app: Flask | None = None) -> None:
        """Check all decorators now, after the last view is added. Without it the first request checks them.

        Args:
            app: The application; None for the current one.

        Raises:
            ConfigError: A decorator cannot work, or a setting names a rule that no decorator gives.
        """
        routes = hooks_of(app).routes
        routes.adopt()
        routes.forget_marks()  # the first request reads them, as without a check

    @property
    def limiter(self) -> Limiter:
        """The limiter of the current application, inside its context."""
        return hooks_of(None).limiter

    def _build_http_limiter(self, app: Flask) -> HttpLimiter:
        settings, limiter, configured = self._settings, self._limiter, app.config.get(SETTING)
        if settings is None and limiter is None:
            if configured is None:
                check_slips(app.config)
                configured = SettingsDict()
            settings, limiter = (None, configured) if isinstance(configured, Limiter) else (configured, None)
        elif configured is not None:
            raise ConfigError(f"RateLimiter(...) and app.config[{SETTING!r}] both have settings. Remove one of them")
        features = {name: app.ensure_sync(read) for name, read in checked_functions(self._features).items()}
        rejection = self._rejection and app.ensure_sync(self._rejection)
        return HttpLimiter(settings, limiter, features, rejection, {"user": flask_user}, self._options)


def hooks_of(app: Flask | None) -> FlaskHooks:
    """Return the hooks of an application, by default the current one. ``ConfigError`` without the extension."""
    app = app or current_app
    hooks: FlaskHooks | None = app.extensions.get(EXTENSION)
    if hooks is None:
        raise ConfigError(f"the application {app.name!r} has no RateLimiter. Call init_app(app) first")
    return hooks
