"""Record events, and draw the curve of any time range. It needs no limiter."""

from .log import ClientCount, Curve, TrafficLog

__all__ = ["ClientCount", "Curve", "TrafficLog"]
