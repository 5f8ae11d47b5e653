"""The table ``[priorities]`` and the option ``reserve`` of a rule. Pure."""

# Annotations are evaluated here, because msgspec reads them.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypedDict

from ..errors import ConfigError, error_path, parse_each, path_of, suggestion
from ..keys.features import Features, header_name
from .declaration import decode, of_type, option
from .values import checked_table, checked_word, parse_percent

PRIORITY: Final = "priority"
"""The feature with the class of a request."""
REQUEST_START: Final = "request_start"
"""The feature with the time at which a proxy received the request, in seconds since 1970."""
LOAD_FEATURES: Final = (PRIORITY, REQUEST_START)
"""The features that adaptive limits read where something provides them."""
_MAX_CLASSES: Final = 10


def _parse_order(names: Sequence[str]) -> tuple[str, ...]:
    order = parse_each(checked_word, names)
    if not 1 <= len(order) <= _MAX_CLASSES or len({*order}) < len(order):
        raise ConfigError(f"expected from 1 to {_MAX_CLASSES} different classes; got {list(names)!r}")
    return order


def _parse_shares(table: Any, most: int = 100) -> dict[str, int]:
    """Return the percent of each class."""
    shares = {}
    for name, share in checked_table(table).items():
        with error_path(path_of(name)):
            shares[name] = parse_percent(share, most)
    return shares


class PriorityTable(TypedDict, total=False):
    """The classes of requests."""

    order: Annotated[
        Sequence[str],
        of_type(Sequence[str], _parse_order),
        option("The classes, the most important one first.", ["critical", "normal", "background"]),
    ]
    header: Annotated[
        str,
        of_type(str, header_name),
        option("The header with the class of a request. It needs `trusted_proxies`.", ""),
    ]
    shed: Annotated[
        Mapping[str, str],
        _parse_shares,
        option(
            "The share of an adaptive limit that each class may take. Default: 100% for the first class, 60% for the"
            " last one, 90% for the others.",
            {},
        ),
    ]


@dataclass(frozen=True)
class Priorities:
    """The classes of requests, the most important one first.

    >>> DEFAULT_PRIORITIES.held({"critical": 20, "normal": 10})
    {'critical': 0, 'normal': 20, 'background': 30}
    """

    order: tuple[str, ...]
    middle: str
    header: str
    shed: Mapping[str, int]
    """The percent of an adaptive limit that each class leaves to others."""

    def class_of(self, features: Features) -> str:
        """Return the class of a request. One that has no class of the list is of the middle class."""
        name = features.get(PRIORITY)
        if isinstance(name, str) and (name := name.strip().lower()) in self.order:
            return name
        return self.middle

    def held(self, reserve: Mapping[str, int]) -> dict[str, int]:
        """Return the percent of a quota that each class leaves to those above it. An unknown class is an error."""
        check_classes(reserve, self.order)
        shares = [reserve.get(name, 0) for name in self.order]
        return {name: sum(shares[:i]) for i, name in enumerate(self.order)}


def parse_priorities(table: Any) -> Priorities:
    """Return the classes of the setting ``priorities``."""
    options = decode(PriorityTable, table, 'a table such as {order = ["critical", "normal"]}')
    order = options["order"]
    shares = dict.fromkeys(order, 90) | {order[-1]: 60} | {order[0]: 100} | options["shed"]
    with error_path("shed"):
        check_classes(shares, order)
        if sorted(shares.values(), reverse=True) != [*shares.values()]:
            raise ConfigError(f"expected shares that fall in the order of the classes; got {shares}")
    shed = {name: 100 - share for name, share in shares.items()}
    return Priorities(order, order[(len(order) - 1) // 2], options["header"], shed)


def parse_reserve(table: Any) -> dict[str, int]:
    """Return the percent that a rule reserves for each class and those above it. Together they are below 100%."""
    reserve = _parse_shares(table, 99)
    if sum(reserve.values()) > 99:
        raise ConfigError(f"expected less than 100% in all; got {sum(reserve.values())}%")
    return reserve


def check_classes(names: Iterable[str], order: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a class that is not in the list. The path of the error is the class."""
    for name in names:
        if name not in order:
            raise ConfigError(f"unknown class {name!r}{suggestion(name, order)}", path_of(name))


DEFAULT_PRIORITIES: Final = parse_priorities({})
