"""``ratelimit-mw capacity``: the servers, workers and connections that a deployment needs, from a simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from ...errors import ConfigError, MissingExtraError
from ...quota import Quota, parse_duration
from ...settings import load_settings
from ..output import FILE, Cell, command, count_text, json_option, parsed, print_json, print_table, print_text, progress
from .inputs import Deployment, MeasuredCosts, default_costs, read_costs, save_costs
from .report import describe

CONSISTENCIES: Final = ("exact", "leased", "reported")


def _text(parse: Callable[[str], Any]) -> dict[str, Any]:
    return {"callback": parsed(parse), "metavar": "TEXT"}


def _parse_percent(text: str) -> float:
    number = text.removesuffix("%")
    if not number.replace(".", "", 1).isdigit() or float(number) > 100:
        raise ConfigError(f'expected a percentage from 0% to 100%, for example "5%"; got {text!r}')
    return float(number) / 100


_DURATION: Final = _text(parse_duration)
_PERCENT: Final = _text(_parse_percent)
_COUNT: Final = click.IntRange(1)
_OPTIONS: Final[tuple[tuple[str, Any, Any, str], ...]] = (
    ("workers", click.IntRange(1, 100_000), 50, "Processes of your application."),
    ("rate", click.FloatRange(1, 1e8), 100_000.0, "Requests per second of all workers together."),
    ("limits", click.IntRange(1, 20), 3, "Limits of a request."),
    ("nodes", click.IntRange(1, 1_000), None, "One server, or the primaries of a cluster. Default: 1, or as in FILE."),
    ("consistency", click.Choice(CONSISTENCIES), "exact", "The consistency of the rules."),
    ("tags", click.Choice(("same", "different")), "same", "Whether the limits of a request have one hash tag."),
    ("rtt", _DURATION, None, "Round-trip time to a server. Default: 0.5ms, or that of FILE."),
    ("machines", _COUNT, 1, "Machines of the workers."),
    ("cores", _COUNT, None, "Cores of a machine of workers. Default: one for each worker."),
    ("threads", click.IntRange(0, 1_000), 0, "Threads of a blocking worker (WSGI). 0: workers with an event loop."),
    ("clients", _COUNT, 100_000, "Clients with a state in the store. All send at the same rate."),
    ("rejected", _PERCENT, "0%", "Share of requests that are rejected."),
    ("rejected-clients", _COUNT, 1_000, "Clients that send the rejected requests."),
    ("second-calls", _PERCENT, "0%", "Share of requests that call again at the end: slots, outcomes, settled costs."),
    ("held-slots", click.IntRange(0), 0, "Slots that are held for longer than 20 s, for example by WebSockets."),
    ("quota", _text(Quota.parse), "1000/minute", "The limit of a client. Leases depend on it."),
    ("lease", _PERCENT, "2%", "The share of the quota that a worker takes as a lease."),
    ("replicas", click.IntRange(0, 5), 0, "Replicas of each server."),
    ("application-cpu", _DURATION, "0ms", "CPU of your application for a request. It delays decisions."),
)  # fmt: skip


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    for name, kind, default, text in reversed(_OPTIONS):
        options = kind if isinstance(kind, dict) else {"type": kind}
        shown = default not in (None, 0)
        function = click.option(f"--{name}", default=default, show_default=shown, help=text, **options)(function)
    return function


@command(
    "ratelimit-mw capacity --workers 50 --machines 10 --rate 100000 --limits 3 --nodes 6",
    "ratelimit-mw capacity --workers 50 --rate 100000 --limits 1 --rtt 0.2ms --json",
    "ratelimit-mw capacity --rate 20000 --measure ratelimit.toml --save costs.json",
    "ratelimit-mw capacity --rate 40000 --nodes 3 --costs costs.json",
)
@_with_options
@click.option("--measure", "file", type=FILE, metavar="FILE",
              help="Measure the servers in this settings file first. This takes 15 s and loads them.")  # fmt: skip
@click.option("--save", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="JSON",
              help="Write the measured costs to this file.")  # fmt: skip
@click.option("--costs", type=FILE, metavar="JSON", help="Use the costs in this file, from --save.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the simulation.")
@json_option
def capacity(
    file: Path | None, save: Path | None, costs: Path | None, seed: int, as_json: bool, **options: Any
) -> None:
    """Simulate workers and servers, and show what they need: CPU, memory, connections and network.

    The command simulates a store on Redis with the costs of this version, the costs of your own servers (--measure),
    or the costs in a file. It shows the CPU of decisions, not of the middleware or of your
    views.

    Requests arrive at random, and your load balancer spreads them evenly over the workers. All clients send at the same
    rate, and each server has the same number of slots. To simulate one busy key, set --clients to 1.
    """
    known = default_costs()
    measured = None
    if costs is not None:
        known |= read_costs(costs)
    if file is not None:
        measured = _measure(file)
        known[measured.is_cluster] = measured
        if save is not None:
            save_costs(save, measured)
    elif save is not None:
        raise click.UsageError("--save writes measured costs. Add --measure FILE")
    figures = describe(_plan(options, measured), known, seed)
    if as_json:
        print_json(figures)
    else:
        _print(figures)


def _plan(options: dict[str, Any], measured: MeasuredCosts | None) -> Deployment:
    quota: Quota = options.pop("quota")
    nodes, rtt, tags = (options.pop(name) for name in ("nodes", "rtt", "tags"))
    default = 500.0 if measured is None else measured.rtt
    return Deployment(
        nodes=nodes or (1 if measured is None else measured.nodes),
        rtt=float(default if rtt is None else rtt),
        has_tags=tags == "same",
        amount=quota.amount,
        period=quota.period_us,
        **options,
    )


def _measure(file: Path) -> MeasuredCosts:
    settings = load_settings(file)
    try:
        from .measure import STEPS, measure
    except ImportError:
        raise MissingExtraError("--measure", "redis") from None
    with progress("measuring", STEPS) as update:
        return measure(settings, lambda: update(advance=1))


def _print(figures: dict[str, Any]) -> None:
    plan, node, worker, latency = (figures[name] for name in ("plan", "node", "worker", "latency_ms"))
    servers = "one server" if plan["nodes"] == 1 else f"a cluster of {plan['nodes']:,} servers"
    per_request = count_text(plan["limits"], "limit")
    print_text(
        f"{count_text(plan['workers'], 'worker')}, {plan['rate']:,.0f} requests/s, {per_request}, {servers}", "bold"
    )
    print_text(f"Costs: {figures['inputs']}. Round-trip time: {plan['rtt'] / 1e3:,.2f} ms")
    click.echo()
    print_table("Servers", _server_rows(node, plan["nodes"]))
    print_table("Workers", [
        {"": "CPU of decisions", "each": _cpu(worker["cpu"]), "all": _cpu(worker["cpu"] * plan["workers"])},
        {"": "connections", "each": f"{worker['connections']:,}", "all": f"{figures['connections']:,}"},
    ])  # fmt: skip
    print_table("Decisions", [
        {"": "added latency", "value": f"p50 {latency['p50']:,.2f} ms, p99 {latency['p99']:,.2f} ms"},
        {"": "decisions per command", "value": f"{figures['decisions_per_command'] or 0:.2f}"},
        {"": "error of admission", "value": _error(figures["admission"])},
    ])  # fmt: skip
    for line in figures["warnings"]:
        print_text(f"warning: {line}", "bold red")


def _server_rows(node: dict[str, Any], nodes: int) -> list[dict[str, Cell]]:
    replication = node["replication_bytes_per_second"]
    parts: list[tuple[str, float, Callable[[float], str]]] = [
        ("commands", node["commands_per_second"], lambda value: f"{value:,.0f}/s"),
        ("CPU", node["cpu"], _cpu),
        ("memory", node["memory_bytes"], _bytes),
        ("connections", node["connections"], "{:,.0f}".format),
        ("received", node["received_bytes_per_second"], lambda value: f"{_bytes(value)}/s"),
        ("sent", node["sent_bytes_per_second"], lambda value: f"{_bytes(value)}/s"),
        *([("to replicas", replication, lambda value: f"{_bytes(value)}/s")] if replication else []),
    ]
    return [{"": name, "each": form(value), "all": form(value * nodes)} for name, value, form in parts]


def _cpu(cores: float) -> str:
    return f"{cores:.1f} cores" if cores >= 1 else f"{cores:.1%} of a core"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1_000:
            return f"{number:,.0f} {unit}"
        number /= 1_000
    return f"{number:,.1f} GB"


def _error(admission: dict[str, Any]) -> str:
    parts = [f"{admission[name]:.1%} {name}" for name in ("over", "late") if admission[name]]
    return f"{' and '.join(parts) or 'none'}: {admission['reason']}"
