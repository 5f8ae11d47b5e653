"""The rules of limits that follow the load. Pure arithmetic: the time is an argument, and there is no I/O."""

from typing import Final

from ...decision import Tuning
from .aimd import Aimd as Aimd
from .rates import Demand as Demand
from .rates import Health as Health

_STATES: Final[dict[str, type[Aimd | Demand]]] = {"time": Aimd, "demand": Demand, "health": Health}


def start(tuning: Tuning) -> Aimd | Demand:
    """Return an adaptive limit at its start."""
    return _STATES[tuning.by](tuning)
