"""Metrics of several processes, which count together in the files of ``prometheus_client``."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from http_servers import served_port, status
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from servers import wait_for

LABELS = {"rule": "api", "outcome": "allowed", "store": "memory"}
LIMITER = """
import os
from ratelimit_mw import Limiter, Rule

rules = [Rule(name="api", limits="1000/minute")]
rate = Limiter(rules, observers=["ratelimit_mw.metrics.prometheus:count"])

def hit(times):
    for _ in range(times):
        rate.hit({"ip": "192.0.2.7"})
"""
ENDS = {
    "exit": "hit(3)",
    "close, without exit functions": "hit(3); rate.close(); os._exit(0)",
    "fork": "hit(2)\nif os.fork() == 0:\n    hit(1)\nelse:\n    os.wait()",
}
APP = """
from flask import Flask
from ratelimit_mw.flask import RateLimiter

app = Flask("app")
app.add_url_rule("/", view_func=lambda: "hello")
rules = [{"name": "api", "limits": "1000/minute"}]
RateLimiter(app, settings={"observers": ["ratelimit_mw.metrics.prometheus:count"], "rules": rules})
"""


def counted(folder: Path, name: str = "requests_total", labels: dict[str, str] = LABELS) -> float:
    """Return the number of allowed requests, or another one, in the files of all processes."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    try:
        return registry.get_sample_value(f"ratelimit_mw_{name}", labels) or 0.0
    except struct.error:  # a process has created its file and has not written it yet
        return 0.0


@pytest.mark.slow
def test_no_count_is_lost_at_the_end(tmp_path: Path) -> None:
    """A child counts only its own requests. The counts of all processes add up."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for number, (name, end) in enumerate(ENDS.items(), 1):
        subprocess.run([sys.executable, "-c", LIMITER + end], env=environment, check=True)
        assert counted(tmp_path) == 3 * number, name


@pytest.mark.slow
def test_no_count_of_a_worker_is_lost(tmp_path: Path) -> None:
    """The server ends its workers with SIGTERM."""
    (tmp_path / "counted_app.py").write_text(APP)
    files = tmp_path / "metrics"
    files.mkdir()
    command, environment = "gunicorn counted_app:app --workers 2", {"PROMETHEUS_MULTIPROC_DIR": str(files)}
    with served_port(tmp_path / "log", command, tmp_path, **environment) as port:
        assert [status(port, "GET /") for _ in range(20)] == [200] * 20
    assert counted(files) == 20


def test_a_process_that_runs_on_writes_its_counts(tmp_path: Path) -> None:
    """An idle one, too."""
    load = 'rules.append(Rule(name="load", limits="adaptive 9..99 concurrent", target=1))\nrate = '
    program = f"{LIMITER.replace('rate = ', load)}hit(3); print(input())"
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE) as process:
        wait_for(lambda: counted(tmp_path) == 3, "the counts")
        labels = {"rule": "load", "reason": "start", "pid": str(process.pid)}
        wait_for(lambda: counted(tmp_path, "adaptive_limit", labels) == 20, "the adaptive limit")
        assert process.poll() is None
        process.communicate(b"end\n")


def test_a_folder_that_is_missing_changes_no_request(tmp_path: Path) -> None:
    """The log has one message, with the name of the observer."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "missing")}
    run = subprocess.run([sys.executable, "-c", f"{LIMITER}hit(3)"], env=environment, capture_output=True, check=True)
    log = run.stderr.decode()
    assert log.count("observer ratelimit_mw.metrics.prometheus.PrometheusMetrics raised FileNotFoundError") == 1
    assert log.count("Traceback") == 1
