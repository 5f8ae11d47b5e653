"""The application, for projects that list it in ``INSTALLED_APPS``."""

from django.apps import AppConfig
from django.core.checks import Tags, register

from .checks import check_deployment, check_project, unused_rules


class RateLimitConfig(AppConfig):  # type: ignore[misc] # Django has no types
    name = "ratelimit_mw.django"
    label = "ratelimit_mw"
    verbose_name = "Rate limits"

    def ready(self) -> None:
        """Register the checks. Raises ``ConfigError`` for rules without the middleware: servers run no checks."""
        register(check_project, Tags.compatibility)
        register(check_deployment, Tags.security, deploy=True)
        if error := unused_rules():
            raise error
