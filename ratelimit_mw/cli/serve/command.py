"""``ratelimit-mw serve``: run the decision service on uvicorn."""

import json
import os
import re
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from ...errors import MissingExtraError
from ...http.token import start_token
from ...limiter.limiter import Limiter
from ..output import FILE, Failure, command, note
from .app import DecisionService
from .gateway import GATEWAYS

_OPTIONS: Final = "RATELIMIT_MW_SERVE"
"""The environment variable with the options, for the workers of uvicorn."""
_SERVER: Final[dict[str, Any]] = {
    "lifespan": "on",
    "ws": "none",
    "access_log": False,
    "proxy_headers": False,  # uvicorn would replace the address of the gateway
    "server_header": False,
    "timeout_keep_alive": 75,  # longer than the connections that nginx keeps, so that nginx closes them first
    "timeout_graceful_shutdown": 10,  # for the requests that are open when the service stops
    "timeout_worker_healthcheck": 30,  # a busy machine starts a worker slowly
}
"""The options of uvicorn. Times are in seconds."""
_TOKEN: Final = re.compile(rb"[!-~]{16,}")


@command(
    "ratelimit-mw serve ratelimit.toml",
    "ratelimit-mw serve ratelimit.toml --gateway nginx --workers 2",
    "ratelimit-mw serve ratelimit.toml --host 0.0.0.0 --admin-token-file token",
)
@click.argument("file", type=FILE)
@click.option("--host", default="127.0.0.1", show_default=True, help="The IP address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8429, show_default=True, help="The port to listen on.")
@click.option("--workers", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Number of processes. More than one needs a shared store.")  # fmt: skip
@click.option("--gateway", type=click.Choice(sorted(GATEWAYS)),
              help="The gateway that sends requests to /auth. Its IP address must be in trusted_proxies.")  # fmt: skip
@click.option("--admin-token-file", "token_file", type=FILE,
              help="A file with the token of programs and admins. By default, the service prints a new token at each"
                   " start.")  # fmt: skip
def serve(file: Path, host: str, port: int, workers: int, gateway: str | None, token_file: Path | None) -> None:
    """Serve decisions to gateways, and to other programs.

    Programs in any language send POST /v1/check. /healthz responds while the service runs, /readyz while it reaches its
    store. The admin API and the dashboard show, reset and ban clients, and change their limits. Programs and admins
    need the token of --admin-token-file. If there is no file, they need the token that the service prints when it
    starts.

    The service follows changes of FILE. On SIGTERM it finishes the requests that it has begun.
    """
    if not all(map(find_spec, ("uvicorn", "jinja2"))):
        raise MissingExtraError("the decision service", "serve")
    sys.path.insert(0, str(Path.cwd()))  # observers may be in the current folder, as for uvicorn
    new_token = "" if token_file else start_token()
    options = str(file), gateway, new_token, str(token_file or "")
    service = _build(*options)
    if workers > 1 and not service.limiter.waits:
        raise Failure("with memory://, each worker would count on its own. Set store to redis:// or lmdb://, or use"
                      " --workers 1")  # fmt: skip
    os.environ[_OPTIONS] = json.dumps(options)
    if token_file and token_file.stat().st_mode & stat.S_IROTH:
        note(f"{token_file}: all users of this machine can read the token. Write: chmod 600 {token_file}")
    if new_token:
        note(f"/v1/check, the admin API and the dashboard need this token until the service stops: {new_token}")
    _run_server(service if workers == 1 else f"{__name__}:create_service", host, port, workers)


def _run_server(service: DecisionService | str, host: str, port: int, workers: int) -> None:
    """Run uvicorn until it is stopped. The name of a function is for several workers."""
    import uvicorn
    from uvicorn.config import LOGGING_CONFIG

    own_logger = {"ratelimit_mw": {"handlers": ["default"], "level": "INFO", "propagate": False}}
    loggers = {**LOGGING_CONFIG, "loggers": {**LOGGING_CONFIG["loggers"], **own_logger}}
    options: dict[str, Any] = {"host": host, "port": port, "workers": workers, "factory": workers > 1}
    try:
        uvicorn.run(service, log_config=loggers, **options, **_SERVER)
    except SystemExit:  # uvicorn has printed the reason, such as a port that is in use
        raise Failure(f"the service did not start on {host}:{port}") from None


def create_service() -> DecisionService:
    """Build the service of a worker."""
    return _build(*json.loads(os.environ[_OPTIONS]))


def _build(file: str, gateway: str | None, new_token: str, token_file: str) -> DecisionService:
    token = new_token or _read_token(Path(token_file))
    return DecisionService(Limiter.from_settings(file), token, gateway)


def _read_token(path: Path) -> str:
    token = path.read_bytes().strip()
    if not _TOKEN.fullmatch(token):  # a header could not have it
        raise Failure(f"{path}: expected a token of at least 16 ASCII characters, without spaces. Write one with:"
                      f" openssl rand -hex 16 > {path}")  # fmt: skip
    return token.decode()
