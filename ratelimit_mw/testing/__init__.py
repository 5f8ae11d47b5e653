"""For tests: limits off or on a clock set by hand, and what proves a store or an algorithm of your own.

Nothing in here needs a test library to be imported. The compliance suites are classes for pytest to collect.
"""

from ..testmode import limits_off
from .algorithms import AlgorithmCompliance
from .clock import ManualClock, limits_timed_by
from .stores import StoreCompliance, StoreSmoke

__all__ = ["AlgorithmCompliance", "ManualClock", "StoreCompliance", "StoreSmoke", "limits_off", "limits_timed_by"]
