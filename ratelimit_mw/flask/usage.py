"""``usage`` for Flask, which finds the request itself."""

from collections.abc import Callable
from typing import Any

import flask

from ..http.usage import NO_STORE, ClientUsage, LimitUsage


class FlaskUsage:
    """Return how much is left of each rule for the client of the request. Consume nothing.

    Args:
        *rules: The names of rules, those of decorators too. Without any: all rules that have a key in this request.
        **features: Features that only your view knows, such as ``email="ann@example.com"``.

    Returns:
        By rule, its ``limit``, its ``remaining`` amount, and ``reset_after``, the seconds until all is left again.
        Without names of rules, a rule has the name that clients see in the headers.
        A rule without a key in this request, or in shadow mode, is not included.

    Raises:
        ConfigError: There is no such rule, or nothing provides a feature of its key.
        MissingMiddlewareError: No ``RateLimiter`` handles the request.

    Example:
        usage("tokens")["tokens"]["remaining"]
    """

    __name__ = "usage"

    def __call__(self, /, *rules: str, **features: Any) -> dict[str, LimitUsage]:
        return ClientUsage(flask.request.environ, rules, features).read()

    def view(self, *rules: str) -> Callable[[], Any]:
        """Return a view that responds with the usage as JSON.

        Args:
            *rules: The names of rules. Without any: all rules that have a key in the request.

        Returns:
            A view: ``app.add_url_rule("/usage", "usage", usage.view())``.
        """

        def show_usage() -> Any:
            return self(*rules), NO_STORE

        return show_usage


usage = FlaskUsage()
