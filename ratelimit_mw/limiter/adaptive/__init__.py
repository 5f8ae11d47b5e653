"""The rules of limits that follow the load. Pure arithmetic: the time is an argument, and there is no I/O."""

from .aimd import Aimd as Aimd
from .rates import Demand as Demand
from .rates import Health as Health
