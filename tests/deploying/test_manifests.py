"""compose.yaml, Dockerfile, the Kubernetes manifests and the systemd unit: valid, and right about each other.

Nothing here runs a container. Their commands run as processes of this machine.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
import yaml
from deployed import AMOUNT, FILES, GUNICORN, assert_valid, replace
from folders import page_of
from servers import program, running
from tables import each

from ratelimit_mw import load_settings

COMPOSE: dict[str, Any] = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
MANIFESTS = sorted((FILES / "kubernetes").glob("*.yaml"))
OBJECTS: dict[str, Any] = {each["kind"]: each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())}
CONTAINER = OBJECTS["Deployment"]["spec"]["template"]["spec"]["containers"][0]
(SETTINGS,) = CONTAINER["env"]
DOCUMENTED = page_of("deploying").read_text()
SECRET: dict[str, str] = dict(re.findall(r"--from-literal=(\w+)=(\S+)", DOCUMENTED))
"""The values of the command on the page, as it is written there."""


@pytest.mark.slow
def test_compose_follows_the_specification() -> None:
    """The JSON schema of the Compose specification, as check-jsonschema ships it, accepts the file."""
    checked("check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILES / "compose.yaml"))


@pytest.mark.slow
@each("path", MANIFESTS)
def test_manifests_follow_the_schemas_of_kubernetes(path: Path) -> None:
    """The strict schemas, as kubernetes-validate ships them, accept every object and reject unknown fields."""
    checked("kubernetes_validate", "--strict", "--kubernetes-version", "1.33", str(path))
    checked("kubernetes_validate", "--strict", str(path))


def checked(*command: str, folder: Path | None = None) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


# -- Docker ------------------------------------------------------------------------------------------------


def instructions(name: str) -> Iterator[str]:
    """The instructions of this name in the Dockerfile."""
    for line in (FILES / "Dockerfile").read_text().splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == name:
            yield rest


def test_the_image_contains_the_files_and_runs_their_command() -> None:
    """The command is the one that the tests of nginx run, and the image installs what it needs."""
    (command,), (copied,), (installed, *_) = map(list, map(instructions, ("CMD", "COPY", "RUN")))
    assert tuple(json.loads(command)) == (*GUNICORN, "app:app")
    for name in copied.split()[:-1]:
        assert (FILES / name).is_file(), name
    assert {"fastapi", "gunicorn", "uvicorn-worker"} <= set(shlex.split(installed))
    assert "ratelimit-mw[redis,cli]" in shlex.split(installed)


@pytest.mark.slow
def test_the_build_checks_the_rules(tmp_path: Path) -> None:
    """The check of the image passes, and finds a mistake."""
    (command,) = (run for run in instructions("RUN") if "ratelimit-mw check" in run)
    variable, *words = shlex.split(command)
    for name in ("app.py", "ratelimit.toml"):
        (tmp_path / name).write_text((FILES / name).read_text())
    environment = {**os.environ, **dict([variable.split("=", 1)])}
    run = [sys.executable, "-c", "from ratelimit_mw.cli import main; main()", *words[1:]]
    assert subprocess.run(run, cwd=tmp_path, env=environment, check=False).returncode == 0
    replace(tmp_path / "ratelimit.toml", f"{AMOUNT}/minute", f"{AMOUNT}/minit")
    assert subprocess.run(run, cwd=tmp_path, env=environment, check=False).returncode == 1


def test_services_fit_together() -> None:
    """The socket is at one path everywhere, the store is the service, and a stop outlasts the requests."""
    socket = "/run/shop/app.sock"
    for name in ("nginx.conf", "gunicorn.conf.py", "compose.yaml"):
        assert socket in (FILES / name).read_text()
    for volume in COMPOSE["nginx"]["volumes"][:-1]:
        assert (FILES / volume.partition(":")[0]).is_file(), volume
    for name in ("app", "nginx"):
        assert "socket:/run/shop" in COMPOSE[name]["volumes"]
    url = COMPOSE["app"]["environment"]["RATELIMIT_STORE"]
    assert re.fullmatch(r"redis://(\w+):6379/0", url)[1] in COMPOSE  # type: ignore[index]
    gunicorn: dict[str, Any] = {}
    exec((FILES / "gunicorn.conf.py").read_text(), gunicorn)
    assert int(COMPOSE["app"]["stop_grace_period"].rstrip("s")) > gunicorn["graceful_timeout"]


@pytest.mark.slow
def test_redis_of_compose_runs_without_persistence(tmp_path: Path) -> None:
    """Redis accepts the options: a memory bound, a policy, and no files. The health check passes."""
    _, *options = shlex.split(COMPOSE["redis"]["command"])
    path = program("redis-server", "redis-server")
    with running(lambda port: [path, "--port", str(port), "--bind", "127.0.0.1", *options], tmp_path) as server:
        with redis_py.Redis(port=server.port) as client:
            told: Any = client.config_get("maxmemory*", "save", "appendonly")
        assert (told["maxmemory"], told["maxmemory-policy"]) == (str(256 * 1024**2), "noeviction")
        assert (told["save"], told["appendonly"]) == ("", "no")
        ping = [
            program("redis-cli", "redis-tools"),
            "-p",
            str(server.port),
            *COMPOSE["redis"]["healthcheck"]["test"][2:],
        ]
        assert subprocess.run(ping, capture_output=True, check=True).stdout.strip() == b"PONG"


# -- Kubernetes --------------------------------------------------------------------------------------------


def test_objects_of_the_manifests_fit_together() -> None:
    """Names, ports and labels agree, probes are exempt, and a pod is given the time that it needs to stop."""
    pod = OBJECTS["Deployment"]["spec"]["template"]
    rules = tomllib.loads(OBJECTS["ConfigMap"]["data"]["ratelimit.toml"])
    probes = {CONTAINER[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == set(rules["exempt"])
    labels = pod["metadata"]["labels"]
    for selector in (
        OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"],
        OBJECTS["Service"]["spec"]["selector"],
        OBJECTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    assert OBJECTS["Service"]["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]
    backend = OBJECTS["Ingress"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend["name"] == OBJECTS["Service"]["metadata"]["name"]
    assert {part.partition("}")[0] for part in str(rules).split("${")[1:]} == set(SECRET)
    (mount,) = CONTAINER["volumeMounts"]
    assert "subPath" not in mount  # Kubernetes never updates such a file
    assert SETTINGS["value"] == f"{mount['mountPath']}/{next(iter(OBJECTS['ConfigMap']['data']))}"
    (graceful,) = (int(word.split("=")[1]) for word in CONTAINER["args"] if "graceful" in word)
    needed = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"] + graceful
    assert pod["spec"]["terminationGracePeriodSeconds"] > needed


def test_the_secret_is_not_in_the_manifests() -> None:
    """Nobody can start with a secret of an example. The page and the manifest have the same command."""
    assert "Secret" not in OBJECTS
    assert SECRET.keys() == {"RATELIMIT_STORE", "RATELIMIT_SECRET"}
    commented = dict(re.findall(r"--from-literal=(\w+)=(\S+)", (FILES / "kubernetes" / "app.yaml").read_text()))
    assert commented == SECRET
    assert SECRET["RATELIMIT_SECRET"].startswith('"$(openssl')


# -- settings and systemd ----------------------------------------------------------------------------------


def test_settings_of_the_example_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the example loads with the store of compose.yaml and with LMDB."""
    for store in (COMPOSE["app"]["environment"]["RATELIMIT_STORE"], "lmdb:///var/lib/shop/ratelimit"):
        monkeypatch.setenv("RATELIMIT_STORE", store)
        assert load_settings(FILES / "ratelimit.toml").trusted_proxies == ("unix",)


def test_the_unit_is_valid(tmp_path: Path) -> None:
    """systemd accepts the unit, and its directories are those of the socket and of LMDB."""
    unit = tmp_path / "shop.service"
    unit.write_text((FILES / "shop.service").read_text())
    replace(unit, "/srv/shop/.venv/bin/gunicorn", sys.executable)
    assert_valid(unit)
    text = unit.read_text()
    assert "RuntimeDirectory=shop\n" in text
    assert "StateDirectory=shop\n" in text
    assert "RuntimeDirectoryMode=0750\n" in text  # not every local user may open the socket
    assert "lmdb:///var/lib/shop/" in text
