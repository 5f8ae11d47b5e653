"""Rate limiting for Python web applications: ASGI and WSGI middleware over one limiter core."""

from .decision import Decision, Verdict
from .errors import ConfigError, RateLimitError, RateLimitExceeded, StoreError
from .limiter import Limiter
from .quota import Quota
from .rules import Rule
from .settings import Settings, load_settings
from .spelling import normalized_email

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
