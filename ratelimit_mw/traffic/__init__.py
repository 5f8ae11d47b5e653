"""Record events, and draw the curve of any time range. It needs no limiter."""

from .counts import ClientCount, Curve, TopClients
from .log import TrafficLog

__all__ = ["ClientCount", "Curve", "TopClients", "TrafficLog"]
