"""Rate limiting for Flask: the extension ``RateLimiter``, the decorators ``limit`` and ``exempt``, ``dashboard()``."""

from ..rules.decorators import exempt, limit
from .check import check
from .dashboard import dashboard
from .extension import RateLimiter
from .usage import usage

__all__ = ["RateLimiter", "check", "dashboard", "exempt", "limit", "usage"]
