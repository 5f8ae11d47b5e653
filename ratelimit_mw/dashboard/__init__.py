"""The dashboard: one page that shows traffic, rejections, bans, overrides, rules and the store of a limiter.

app.mount("/ratelimit", dashboard(limiter, allow=is_staff))
"""

from .asgi import dashboard

__all__ = ["dashboard"]
