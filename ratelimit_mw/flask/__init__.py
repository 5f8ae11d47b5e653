"""Rate limiting for Flask: the extension ``RateLimiter``, and the decorators ``limit`` and ``exempt``."""

from ..rules.decorators import exempt, limit
from .check import check
from .extension import RateLimiter
from .usage import usage

__all__ = ["RateLimiter", "check", "exempt", "limit", "usage"]
