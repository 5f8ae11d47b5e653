"""Record events, and draw the curve of any time range. It needs no limiter."""

from .estimate import Estimate
from .figures import ClientCount, Curve
from .log import TrafficLog

__all__ = ["ClientCount", "Curve", "Estimate", "TrafficLog"]
