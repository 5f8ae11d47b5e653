"""Metrics for Prometheus and OpenTelemetry, the attributes of spans, and the dashboard and alerts."""

import gc
import json
import re
from typing import Any, get_args
from unittest.mock import Mock

import promql_parser
import pytest
import yaml
from calls import ask
from folders import ROOT, page_of
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from shared_store import SharedStore
from starlette.responses import PlainTextResponse
from tables import each

from ratelimit_mw import Event, Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.limiter.observers import readers
from ratelimit_mw.limiter.observers.events import REJECTED, Outcome
from ratelimit_mw.limiter.observers.readers import OutcomeReader
from ratelimit_mw.metrics import BUCKETS, opentelemetry, prometheus
from ratelimit_mw.metrics.opentelemetry import OpenTelemetryMetrics, annotate
from ratelimit_mw.metrics.prometheus import PrometheusMetrics
from ratelimit_mw.settings import load_settings
from ratelimit_mw.testing import ManualClock

ANN = {"ip": "192.0.2.7"}
MONITORING = ROOT / "examples" / "monitoring"
RULES = [
    Rule(name="api", limits="2/minute"),
    Rule(name="new", limits="1/minute", mode="shadow"),
]


def use(observer: Any) -> None:
    """Decide three requests, and one that a deny list rejects."""
    settings = load_settings({"lists": {"deny": {"user": ["eve"]}}})
    rate = Limiter(RULES, clock=ManualClock(1_000_000.0), settings=settings, observers=[observer])
    for features in (ANN, ANN, ANN, {**ANN, "user": "eve"}):
        rate.hit(features)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    found = [sample for family in registry.collect() for sample in family.samples]
    return {
        (each.labels["rule"], each.labels["outcome"], each.labels["store"]): each.value
        for each in found
        if each.name == "ratelimit_mw_requests_total"
    }


COUNTS = {
    ("api", "allowed", "memory"): 2,
    ("api", "rejected", "memory"): 1,
    ("new", "allowed", "memory"): 1,
    ("new", "shadow", "memory"): 2,  # including the request that "api" rejects
    ("", "denied", "memory"): 1,
}


def test_the_outcome_of_each_rule_is_counted() -> None:
    """A rejected request and a request that a shadow rule would reject are side by side."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    use(PrometheusMetrics(registry))
    assert samples(registry) == COUNTS
    use(OpenTelemetryMetrics(MeterProvider([reader])))
    found = {tuple(each.attributes.items()): each.value for each in points(reader)["ratelimit.requests"]}
    names = "ratelimit.rule", "ratelimit.outcome", "ratelimit.store"
    assert found == {
        tuple((name, value) for name, value in zip(names, labels, strict=True) if value): count
        for labels, count in COUNTS.items()
    }


def test_the_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further rules share one series for each outcome, even when another limiter counts the same."""
    monkeypatch.setattr(readers, "MAX_SERIES", 2)
    table = OutcomeReader()
    rules = [Rule(name=f"rule{i}", limits="9/minute", match={"path": f"/{i}"}) for i in range(9)]
    for rate in Limiter(rules, observers=[table]), Limiter(rules, observers=[table]):
        for i in range(9):
            rate.hit({**ANN, "path": f"/{i}"})
    assert {labels[0]: number for labels, number in table.totals().items()} == {"rule0": 2, "rule1": 2, "other": 14}


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data: Any = reader.get_metrics_data()
    every = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    return {metric.name: list(metric.data.data_points) for metric in every}


def test_adaptive_limits_are_shown_with_the_reason_of_their_last_change() -> None:
    """Of several keys, the lowest limit and its requests in flight. They end with the limiter."""
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    observers = [OpenTelemetryMetrics(MeterProvider([reader])), PrometheusMetrics(registry)]
    rule = Rule(name="load", limits="adaptive 2..200 concurrent", target=1)
    rate = Limiter([rule], clock=ManualClock(1_000_000.0), observers=observers)
    held = [rate.hit({"ip": f"192.0.2.{number}", "priority": "critical"}) for number in (1, 1, 2)]
    for state, limit in zip(rate.adaptive.states().values(), (6.4, 40.0), strict=True):
        state.limit, state.reason = limit, "slow"
    found = points(reader)
    for name, value, labels in (("limit", 6, {"rule": "load", "reason": "slow"}), ("in_flight", 2, {"rule": "load"})):
        (point,) = found[f"ratelimit.adaptive.{name}"]
        assert (point.value, point.attributes) == (value, {f"ratelimit.{key}": each for key, each in labels.items()})
        assert registry.get_sample_value(f"ratelimit_mw_adaptive_{name}", labels) == value
    del held, rate, state
    gc.collect()
    assert registry.get_sample_value("ratelimit_mw_adaptive_in_flight", {"rule": "load"}) is None


def test_the_functions_for_the_settings_stand_for_readers() -> None:
    """So the gauges have their limiters, and requests need no events."""
    rate = Limiter(RULES, observers=[f"ratelimit_mw.metrics.{name}:count" for name in ("prometheus", "opentelemetry")])
    assert [type(each) for each in rate.observers.readers] == [PrometheusMetrics, OpenTelemetryMetrics]


def test_the_store_is_measured_and_its_breaker_shown() -> None:
    """A call that fails counts as an error. The memory store has neither."""
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    observers = [OpenTelemetryMetrics(MeterProvider([reader])), PrometheusMetrics(registry)]
    store = SharedStore()
    rate = Limiter(RULES, store, observers=observers)
    use(observers[1])
    for is_down, state in ((False, 0), (True, 1)):
        store.down = is_down
        for _ in range(4):  # the breaker opens after three, and the fourth rejection is cached
            rate.hit({"ip": f"192.0.2.{is_down}"})
        found = points(reader)
        assert {each.attributes["ratelimit.result"]: each.count for each in found["ratelimit.store.duration"]} == {
            "ok": 3,
            **({"error": 3} if is_down else {}),
        }
        (breaker,) = found["ratelimit.store.breaker_open"]
        assert (breaker.value, breaker.attributes) == (state, {"ratelimit.store": "shared"})
        assert registry.get_sample_value("ratelimit_mw_store_breaker_open", {"store": "shared"}) == state
    counts = {
        (each.labels["store"], each.labels["result"]): each.value
        for family in registry.collect()
        for each in family.samples
        if each.name == "ratelimit_mw_store_seconds_count"
    }
    assert counts == {("shared", "ok"): 3, ("shared", "error"): 3}
    assert {each.explicit_bounds for each in found["ratelimit.store.duration"]} == {BUCKETS}
    buckets = {each.labels.get("le") for family in registry.collect() for each in family.samples}
    assert buckets == {None, "+Inf", *map(str, BUCKETS)}


def test_the_sdk_exports_when_a_limiter_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its server may end the process with a signal. A provider without an SDK exports nothing."""
    monkeypatch.setattr(MeterProvider, "force_flush", flush := Mock())
    for provider in (MeterProvider(), NoOpMeterProvider()):
        Limiter(observers=[OpenTelemetryMetrics(provider)]).close()
    assert (flush.call_count, caplog.text) == (1, "")


def test_a_limiter_that_is_gone_is_forgotten() -> None:
    """Its numbers stay."""
    table = OutcomeReader()
    for _ in range(3):
        use(table)
    gc.collect()
    for _ in range(2):
        assert sum(table.totals().values()) == 21
        assert list(table.limiters) == []


def test_annotate_adds_attributes_to_the_span() -> None:
    rate = Limiter(RULES, clock=ManualClock(1_000_000.0), observers=[annotate])
    rate.hit(ANN)  # without a span
    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        rate.hit(ANN)
        rate.observers.report((rate.hit(ANN),), None, "/items/{id}", "GET")
    assert dict(span.attributes) == {  # type: ignore[attr-defined]
        "ratelimit.outcome": "rejected",
        "ratelimit.store": "memory",
        "ratelimit.rules": ("api", "new"),
        "ratelimit.limited_by": ("api",),
        "ratelimit.endpoint": "/items/{id}",
        "ratelimit.method": "GET",
        "ratelimit.wait": 60.0,
    }


def test_a_span_that_ends_with_the_response_has_the_attributes() -> None:
    """The instrumentation of a framework ends its span with the last part of the body, before the event is sent."""
    spans: list[Any] = []

    async def instrumented(scope: Any, receive: Any, send: Any) -> None:
        async def ending(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                span.end()

        with TracerProvider().get_tracer("test").start_as_current_span("request", end_on_exit=False) as span:
            spans.append(span)
            await app(scope, receive, ending)

    app = RateLimitMiddleware(PlainTextResponse("hello"), limits="1/minute", observers=[annotate])
    assert [ask(instrumented).status_code for _ in range(2)] == [200, 429]
    assert [span.attributes["ratelimit.outcome"] for span in spans] == ["allowed", "rejected"]


@each("module", [prometheus, opentelemetry])
def test_settings_name_the_observers(module: Any) -> None:
    """All limiters share the reader of the process. An observer of your own may pass events on to it."""
    events: list[Event] = []
    for observer in (f"{module.__name__}:count", events.append):
        Limiter(RULES[:1], observers=[observer]).hit(ANN)
    module.count(events[0])
    assert module.count.reader().totals() == {("api", "allowed", "memory"): 2}


def expressions() -> list[str]:
    """The queries of the dashboard, with values for its variables, and those of the alerts."""
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    queries += [re.sub(r"^label_values\((.*), rule\)$", r"\1", variable) for variable in variables]
    filled = [query.replace("$__rate_interval", "1m").replace("$rule", "api") for query in queries]
    return filled + [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_dashboard_and_the_alerts_use_labels_and_variables_that_exist() -> None:
    dashboard, alerts = ((MONITORING / name).read_text() for name in ("grafana.json", "alerts.yml"))
    used = re.findall(r"by \((.*?)\)|{{(\w+)}}|\$labels\.(\w+)", dashboard + alerts)
    assert {name for names in used for name in names if name} <= {"rule", "outcome", "store"}
    variables = {variable["name"] for variable in json.loads(dashboard)["templating"]["list"]}
    assert set(re.findall(r"\${(\w+)}", dashboard)) <= variables
    rules = [rule for group in yaml.safe_load(alerts)["groups"] for rule in group["rules"]]
    assert all(re.fullmatch(r"\d+[smhd]", rule["for"]) for rule in rules)
    assert set(re.findall(r"\$value \| (\w+)", alerts)) <= {"humanizePercentage"}


def test_the_dashboard_and_the_page_have_each_rejection() -> None:
    """A new outcome must not be missing where operators look for rejections."""
    for file in MONITORING / "grafana.json", page_of("observing"):
        found = re.findall(r'outcome=~\\?"([\w|]+)', file.read_text())
        assert {name for names in found for name in names.split("|")} == REJECTED


def selectors(query: str) -> list[Any]:
    """Parse a query. Return its selectors of metrics."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(query), lambda node: found.append(node))
    return [node for node in found if isinstance(node, promql_parser.VectorSelector)]


@each("query", expressions())
def test_the_dashboard_and_the_alerts_use_metrics_that_exist(query: str) -> None:
    """Names, labels and outcomes. A query with a mistake of PromQL cannot be parsed."""
    registry = CollectorRegistry()
    use(PrometheusMetrics(registry))
    names = {sample.name for family in registry.collect() for sample in family.samples}
    found = selectors(query)
    assert found
    assert {selector.name for selector in found} <= names
    for matcher in (matcher for selector in found for matcher in selector.matchers.matchers):
        known = {"rule": {"api"}, "outcome": set(get_args(Outcome)), "store": {"local"}}[matcher.name]
        assert set(matcher.value.split("|")) <= known
