"""Flask: ``RateLimiter`` is the extension, ``limit`` and ``exempt`` mark views, classes and blueprints."""

from ..rules.marks import exempt, limit
from .extension import RateLimiter

__all__ = ["RateLimiter", "exempt", "limit"]
