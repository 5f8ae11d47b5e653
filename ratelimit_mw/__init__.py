"""Rate limiting for Python web applications: ASGI and WSGI middleware over one limiter core."""

from .decision import Decision, Verdict
from .errors import ConfigError, RateLimitError, RateLimitExceeded, StoreError
from .keys.email import normalized_email
from .limiter.limiter import Limiter
from .quota import Quota
from .rules.rule import Rule
from .settings import Settings, load_settings

__all__ = [
    "ConfigError",
    "Decision",
    "Limiter",
    "Quota",
    "RateLimitError",
    "RateLimitExceeded",
    "Rule",
    "Settings",
    "StoreError",
    "Verdict",
    "load_settings",
    "normalized_email",
]

__version__ = "0.1.0"
