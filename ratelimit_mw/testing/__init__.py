"""Tools for your tests: switches for rate limits, a manual clock, and compliance suites for your stores and algorithms.

This package imports no test library. The compliance suites are classes that pytest collects.
"""

from ..testmode import limits_off
from .algorithm_compliance import AlgorithmCompliance
from .clock import ManualClock, limits_timed_by
from .store_compliance import StoreCompliance

__all__ = ["AlgorithmCompliance", "ManualClock", "StoreCompliance", "limits_off", "limits_timed_by"]
