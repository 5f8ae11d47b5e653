"""Forecasts hourly counts: STL with exponential smoothing, beside the seasonal naive forecast as the baseline.

STL (seasonal and trend decomposition by local regression) takes the seasonal part out of the logarithms of the counts.
A damped trend continues the rest, and the seasonal part of the last period is added again. Single peaks have a low
weight. The seasonal naive forecast repeats the last period.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...errors import MissingExtraError
from ..output import Failure

try:
    import numpy
    from statsmodels.tsa.api import STLForecast
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel
except ImportError:
    raise MissingExtraError("forecast", "forecast") from None

DAY: Final = 24
WEEK: Final = 7 * DAY
_PERIODS: Final = 3
"""A series has at least three periods: two to forecast from, and one to compare with."""

Values = Sequence[float]


class Forecast(NamedTuple):
    """The next period of a series, and how well the same models forecast the last period from those before."""

    period: int
    """Hours: a day or a week."""
    model: str
    """The model with the lower error. It has made the forecast."""
    counts: list[float]
    tested: dict[str, list[float]]
    """The forecasts of the last period, by model."""
    errors: dict[str, float]
    """The sum of all absolute errors as a share of all requests, by model."""
    margin: float
    """The requests by which nine of ten hours exceeded their forecast at most."""


def forecast(counts: Values) -> Forecast:
    """Forecast the next week of hourly counts, or the next day of counts of less than three weeks."""
    period = next((each for each in (WEEK, DAY) if len(counts) >= _PERIODS * each), None)
    if period is None:
        raise Failure(f"a forecast needs three whole days, or three weeks for a week; got {len(counts)} hours")
    if not sum(counts[-period:]):
        raise Failure(f"no request in the last {period} whole hours. A forecast needs requests in each day or week")
    before, truth = counts[:-period], counts[-period:]
    tested = {name: model(before, period) for name, model in _MODELS.items()}
    errors = {name: _error(truth, values) for name, values in tested.items()}
    best = min(errors, key=lambda name: errors[name])
    excess = sorted(real - value for real, value in zip(truth, tested[best], strict=True))
    return Forecast(period, best, _MODELS[best](counts, period), tested, errors, max(0.0, excess[period * 9 // 10]))


def _seasonal(counts: Values, period: int) -> list[float]:
    options = {"error": "add", "trend": "add", "damped_trend": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a series that does not vary has no likelihood, and the back-test shows it
        model = STLForecast(numpy.log1p(counts), ETSModel, model_kwargs=options, period=period, robust=True)
        values = numpy.expm1(model.fit(fit_kwargs={"disp": False}).forecast(period))
    return [max(0.0, float(value)) for value in numpy.nan_to_num(values, posinf=0.0)]


def _naive(counts: Values, period: int) -> list[float]:
    return [float(value) for value in counts[-period:]]


_MODELS: Final[dict[str, Callable[[Values, int], list[float]]]] = {
    "STL with exponential smoothing": _seasonal,
    "seasonal naive": _naive,
}


def _error(truth: Values, values: Values) -> float:
    return sum(abs(real - value) for real, value in zip(truth, values, strict=True)) / sum(truth)
