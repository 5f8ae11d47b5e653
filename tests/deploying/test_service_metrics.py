"""The metrics of ``ratelimit-mw serve`` with two workers, with the program of observing.md for OpenTelemetry."""

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from decision_service import PROGRAM, WITH_TOKEN, token_options
from folders import page_of
from gateway_site import stop
from servers import PATIENCE, free_port, wait_for

pytestmark = pytest.mark.thorough

REQUESTS = 60
ALLOWED = 40
SETTINGS = f"""
store_timeout = "10s"
observers = ["telemetry:count"]

[[rules]]
name = "api"
limits = "{ALLOWED}/day"
"""


def program_of_page(name: str) -> str:
    page = page_of("observing").read_text()
    (program,) = re.findall(rf"```py\n# {re.escape(name)}\n(.*?)```", page, re.DOTALL)
    return str(program)


def exports(output: str) -> Iterator[dict[str, Any]]:
    """Yield what the workers have exported, in the order of time."""
    for start in re.finditer(r'^\{\s+"resource_metrics"', output, re.MULTILINE):
        export, _ = json.JSONDecoder().raw_decode(output, start.start())
        yield export["resource_metrics"][0]


def counted(output: str) -> Counter[str]:
    """Return the requests by outcome: the sum of the last export of each worker."""
    last = {each["resource"]["attributes"]["service.instance.id"]: each for each in exports(output)}
    counts = Counter[str]()
    for export in last.values():
        metrics = [metric for scope in export["scope_metrics"] for metric in scope["metrics"]]
        for metric in metrics:
            if metric["name"] == "ratelimit.requests":
                for point in metric["data"]["data_points"]:
                    counts[point["attributes"]["ratelimit.outcome"]] += point["value"]
    return counts


def test_the_metrics_of_two_workers_are_exact(tmp_path: Path) -> None:
    """No count is lost when the service ends. Those of Prometheus are in ``tests/metrics/``."""
    port = free_port()
    (tmp_path / "ratelimit.toml").write_text(f'store = "lmdb://{tmp_path}/state"\n{SETTINGS}')
    (tmp_path / "telemetry.py").write_text(program_of_page("telemetry.py"))
    options = ["--port", str(port), "--workers", "2", *token_options(tmp_path)]
    with (tmp_path / "output").open("wb") as output, ExitStack() as stack:
        command = [str(PROGRAM), "serve", "ratelimit.toml", *options]
        service = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
        stack.callback(stop, {"service": service})
        wait_for(lambda: (tmp_path / "output").read_text().count("startup complete") == 2, "two workers")
        question = {"features": {"ip": "192.0.2.7"}}
        for _ in range(REQUESTS):
            url = f"http://127.0.0.1:{port}/v1/check"
            httpx.post(url, json=question, headers=WITH_TOKEN, timeout=PATIENCE).raise_for_status()
        service.send_signal(signal.SIGTERM)
        service.wait(PATIENCE)
    assert counted((tmp_path / "output").read_text()) == {"allowed": ALLOWED, "rejected": REQUESTS - ALLOWED}
