"""The application for ``INSTALLED_APPS``, with its system checks: mistakes that Django reports before it serves."""

from typing import Any, Final

import django.conf
from django.apps import AppConfig
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core import checks

from ..errors import ConfigError, RateLimitError
from ..settings import SETTING
from .limits import project_limits
from .middleware import BEFORE_USER, RateLimitMiddleware, is_before_user, positions_of

_LOCALE: Final = "django.middleware.locale.LocaleMiddleware"
_PACKAGE: Final = "ratelimit_mw."
_ADD: Final = 'Add "ratelimit_mw.django.RateLimitMiddleware" to MIDDLEWARE, after AuthenticationMiddleware.'
_WARNINGS: Final = {
    "W001": f"Decorators limit views, but MIDDLEWARE does not list RateLimitMiddleware: they raise an error. {_ADD}",
    "W003": BEFORE_USER,
    "W004": (
        "URLs begin with a language, but RateLimitMiddleware runs before it is known, so it finds no routes. Move it"
        " after LocaleMiddleware."
    ),
}


class RateLimitConfig(AppConfig):  # type: ignore[misc] # Django has no types
    name = "ratelimit_mw.django"
    label = "ratelimit_mw"
    verbose_name = "Rate limits"

    def ready(self) -> None:
        """Register the checks. Raises ``ConfigError`` for rules without the middleware: servers run no checks."""
        checks.register(check_project, checks.Tags.compatibility)
        if error := _unused_rules():
            raise error


def check_project(**_: Any) -> list[Any]:
    """E001: a setting or a decorator cannot work. E002: rules, and W001: decorators without the middleware.

    W003: the user, and W004: the language is not known yet at the place of the middleware.
    """
    try:
        project = project_limits()
        has_limits = project.routes().has_limits
    except RateLimitError as error:
        text = " ".join((str(error), *getattr(error, "__notes__", ())))
        return [checks.Error(text, id="ratelimit_mw.E001")]
    by_language, _ = is_language_prefix_patterns_used(django.conf.settings.ROOT_URLCONF)
    position, locale = (max(positions_of(one), default=-1) for one in (RateLimitMiddleware, _LOCALE))
    found = {
        "W001": has_limits and position < 0,
        "W003": is_before_user(project),
        "W004": by_language and 0 <= position < locale,
    }
    unused = _unused_rules()
    errors = [checks.Error(unused.message, id="ratelimit_mw.E002")] if unused else []
    names = [name for name, applies in found.items() if applies]
    return [*errors, *(checks.Warning(_WARNINGS[name], id=f"ratelimit_mw.{name}") for name in names)]


def _unused_rules() -> ConfigError | None:
    """Return the error of a project whose rules nothing applies, because the middleware is missing."""
    settings = django.conf.settings
    if getattr(settings, SETTING, None) is None or any(name.startswith(_PACKAGE) for name in settings.MIDDLEWARE):
        return None
    if positions_of(RateLimitMiddleware):  # a subclass
        return None
    rules = [rule for rule in project_limits().http_limiter.in_force.rules.everywhere if not rule.source.unrouted]
    names = [rule.name for rule in rules if not rule.source.matches.is_only_named]
    if not names:
        return None
    message = f"MIDDLEWARE does not list RateLimitMiddleware, so the rule {names[0]!r} limits nothing. {_ADD}"
    return ConfigError(f"{message} For rules that only your own code uses, set unrouted = True", SETTING)
