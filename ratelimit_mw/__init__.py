"""Rate limiting for Python web applications: ASGI and WSGI middleware over one limiter core."""

from .decision import Decision, RateLimitExceeded, Verdict
from .errors import (
    ConfigError,
    FeatureTypeError,
    MissingExtraError,
    MissingMiddlewareError,
    NoRoomError,
    RateLimitError,
    StateError,
    StoreError,
)
from .http.rejection import Rejection
from .keys.features import INVALID
from .keys.forms import normalized_email
from .limiter.limiter import Limiter
from .limiter.observers.events import Event
from .limiter.observers.rejection_log import log_rejections
from .quota import Quota
from .rules.rule import Rule
from .settings import Settings, SettingsDict, load_settings

__all__ = [
    "INVALID",
    "ConfigError",
    "Decision",
    "Event",
    "FeatureTypeError",
    "Limiter",
    "MissingExtraError",
    "MissingMiddlewareError",
    "NoRoomError",
    "Quota",
    "RateLimitError",
    "RateLimitExceeded",
    "Rejection",
    "Rule",
    "Settings",
    "SettingsDict",
    "StateError",
    "StoreError",
    "Verdict",
    "load_settings",
    "log_rejections",
    "normalized_email",
]

__version__ = "0.1.0"
