"""Metrics for Prometheus and OpenTelemetry, the attributes of spans, and the dashboard and alerts."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import promql_parser
import pytest
import yaml
from folders import ROOT
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.limiter.observers import counts
from ratelimit_mw.limiter.observers.counts import OutcomeCounts
from ratelimit_mw.limiter.observers.events import Outcome
from ratelimit_mw.metrics import opentelemetry, prometheus
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


def test_prometheus_counts_the_outcome_of_each_rule() -> None:
    """A rejected request and a request that a shadow rule would reject are side by side."""
    registry = CollectorRegistry()
    use(PrometheusMetrics(registry))
    assert samples(registry) == {
        ("api", "allowed", "memory"): 2,
        ("api", "rejected", "memory"): 1,
        ("new", "allowed", "memory"): 1,
        ("new", "shadow", "memory"): 2,  # including the request that "api" rejects
        ("", "denied", "memory"): 1,
    }


def test_the_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further rules share one series for each outcome."""
    monkeypatch.setattr(counts, "MAX_SERIES", 2)
    table = OutcomeCounts()
    for i in range(9):
        next(table.counter_of((f"rule{i}", "allowed", "memory")))
    assert {labels[0]: number for labels, number in table.totals().items()} == {"rule0": 1, "rule1": 1, "other": 7}


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data: Any = reader.get_metrics_data()
    every = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    return {metric.name: list(metric.data.data_points) for metric in every}


def test_opentelemetry_has_the_instruments_of_aspnetcore() -> None:
    reader = InMemoryMetricReader()
    use(OpenTelemetryMetrics(MeterProvider([reader])))
    found = {
        (
            each.attributes.get("aspnetcore.rate_limiting.policy"),
            each.attributes["aspnetcore.rate_limiting.result"],
            each.attributes["ratelimit_mw.outcome"],
            each.attributes["ratelimit_mw.store"],
        ): each.value
        for each in points(reader)["aspnetcore.rate_limiting.requests"]
    }
    assert found[("api", "acquired", "allowed", "memory")] == 2
    assert found[("api", "endpoint_limiter", "rejected", "memory")] == 1
    assert found[("new", "acquired", "shadow", "memory")] == 2
    assert found[(None, "endpoint_limiter", "denied", "memory")] == 1


def test_opentelemetry_has_the_time_in_a_queue() -> None:
    reader = InMemoryMetricReader()
    queue: Any = {"name": "leaky-bucket", "mode": "queue"}
    rate = Limiter(
        [Rule(name="calls", limits="60/minute burst 5", algorithm=queue)],
        clock=ManualClock(1_000_000.0),
        observers=[OpenTelemetryMetrics(MeterProvider([reader]))],
    )
    for _ in range(2):
        rate.hit(ANN)
    (point,) = points(reader)["aspnetcore.rate_limiting.request.time_in_queue"]
    assert (point.count, point.sum) == (1, 1.0)
    assert point.attributes["aspnetcore.rate_limiting.policy"] == "calls"


def test_annotate_adds_attributes_to_the_span() -> None:
    rate = Limiter(RULES, clock=ManualClock(1_000_000.0), observers=[annotate])
    rate.hit(ANN)  # without a span
    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        for _ in range(2):
            rate.hit(ANN)
    assert dict(span.attributes) == {  # type: ignore[attr-defined]
        "ratelimit_mw.outcome": "rejected",
        "ratelimit_mw.store": "memory",
        "ratelimit_mw.rules": ("api", "new"),
        "ratelimit_mw.limited_by": ("api",),
        "ratelimit_mw.wait": 60.0,
    }


@each("module", [prometheus, opentelemetry])
def test_settings_name_the_observers(module: Any) -> None:
    """The observer of the process is built at its first event."""
    module._of_process.cache_clear()
    rate = Limiter.from_settings({"observers": [f"{module.__name__}:count"]})
    rate.hit(ANN)
    assert module._of_process.cache_info().currsize == 1


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
