"""Record events, and draw the curve of any time range. It needs no limiter."""

from .estimate import Estimate
from .log import ClientCount, Curve, TrafficLog

__all__ = ["ClientCount", "Curve", "Estimate", "TrafficLog"]
