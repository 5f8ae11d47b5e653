"""``check`` for Flask, which finds the request itself."""

from typing import Any

import flask

from ..decision import Verdict
from ..http.checks import NamedRule, settle


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

    def peek(self, rule: str, /, **features: Any) -> Verdict:
        """Return the verdict that ``check`` would return or raise. Consume nothing.

        Args:
            rule: The name of the rule.
            **features: Features that only your view knows.

        Returns:
            The verdict. It is true when the rule would allow the request.
        """
        return NamedRule(flask.request.environ, rule, features).peek()

    def reset(self, rule: str, /, **features: Any) -> None:
        """Reset the counts of this client under the rule. An unreachable store is logged.

        Args:
            rule: The name of the rule.
            **features: Features that only your view knows.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
        """
        NamedRule(flask.request.environ, rule, features, costs=False).reset()

    def settle(self, rule: str, cost: int, /) -> None:
        """Replace the cost that the request consumed from the rule by the true cost, at the end of the response.

        Args:
            rule: The name of the rule.
            cost: The true cost in units of the limit, a whole number from 0 to 10**12.

        Raises:
            ConfigError: There is no such rule, or ``cost`` is not such a number.
        """
        settle(flask.request.environ, rule, cost)


check = FlaskCheck()
