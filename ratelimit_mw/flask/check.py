"""``check`` for Flask, which finds the request itself."""

from typing import Any

import flask

from ..decision import Verdict
from ..http.checks import NamedRule


class FlaskCheck:
    """Decide a rule of the settings by its name, in a view.

    The features of its key are those of the request, and those that you pass. Of its ``match``, only features are
    compared. Headers and verdict of the request show the decision too. A rule that is only for ``check`` has
    ``match = {view = ""}``.

    Args:
        rule: The name of the rule.
        **features: Features that only your view knows, such as ``email="ann@example.com"``.

    Returns:
        The verdict on this rule.

    Raises:
        RateLimitExceeded: The rule rejects. It is a 429 of Werkzeug too, which an error handler may handle.
        ConfigError: There is no such rule, or nothing provides a feature of its key.
        MissingMiddlewareError: No ``RateLimiter`` handles the request.

    Example:
        check("forum-post", thread=7)
    """

    __name__ = "check"

    def __call__(self, rule: str, /, **features: Any) -> Verdict:
        return NamedRule(flask.request.environ, rule, features).check()

    def reset(self, rule: str, /, **features: Any) -> None:
        """Reset the counts of this client under the rule. An unreachable store is logged.

        Args:
            rule: The name of the rule.
            **features: Features that only your view knows.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
        """
        NamedRule(flask.request.environ, rule, features, costs=False).reset()


check = FlaskCheck()
