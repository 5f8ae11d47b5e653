"""The application, for projects that list it in ``INSTALLED_APPS``."""

from django.apps import AppConfig
from django.core.checks import Tags, register

from .checks import check_deployment, check_project


class RateLimitConfig(AppConfig):  # type: ignore[misc] # Django has no types
    name = "ratelimit_mw.django"
    label = "ratelimit_mw"
    verbose_name = "Rate limits"

    def ready(self) -> None:
        register(check_project, Tags.compatibility)
        register(check_deployment, Tags.security, deploy=True)
