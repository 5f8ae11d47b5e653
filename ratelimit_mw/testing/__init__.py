"""For tests: a clock that moves only when told to, and what proves a store or an algorithm of your own.

Nothing in here needs a test library to be imported. The compliance suites are classes for pytest to collect.
"""

from .algorithms import AlgorithmCompliance
from .clock import ManualClock
from .stores import StoreCompliance

__all__ = ["AlgorithmCompliance", "ManualClock", "StoreCompliance"]
