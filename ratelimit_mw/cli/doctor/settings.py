"""Findings on the settings: their file, the environment, the proxies and the headers. No store is opened."""

import os
import platform
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ... import __version__
from ...http.client_ip import UNIX
from ...http.notes import NOT_ENABLED
from ...keys.networks import parse_network
from ...settings import Settings
from ...stores import redacted_url
from ..check import check_source, headers_of_no_proxy, notes_on_deployment
from ..source import Source
from .finding import NOTE, PROBLEM, WARNING, Finding

_LIBRARIES: Final = {"redis": ("redis", "hiredis"), "lmdb": ("lmdb",)}
"""The libraries of each kind of store."""
_FILES: Final = ("ratelimit.toml", "ratelimit.json", "ratelimit.yaml")
_VARIABLE: Final = "RATELIMIT_"
_PROXY_VARIABLE: Final = "FORWARDED_ALLOW_IPS"
_WIDE: Final = 1 << 16


def examine_versions(store: str) -> Finding:
    """Return the versions of this package, of Python and of the libraries of a store."""
    kind = "lmdb" if store.startswith("lmdb") else "redis" if re.match("redis|valkey|unix|Redis", store) else ""
    versions = {"ratelimit-mw": __version__, "Python": platform.python_version()}
    for library in _LIBRARIES.get(kind, ()):
        try:
            versions[library] = version(library)
        except PackageNotFoundError:  # a store of the application may not need it
            continue
    return Finding("versions", ", ".join(f"{name} {text}" for name, text in versions.items()), data=versions)


def examine_settings(source: Source) -> Iterator[Finding]:
    """Yield the file in effect, the findings of ``check``, and files and variables that are not read."""
    settings = source.settings
    origin = source.running_settings.origin
    files = [os.path.realpath(path) for path in origin.files] if origin else []
    text = f"read from {', '.join(files)}" if files else "in the code of the application, without a file"
    yield Finding("settings", text, data={"files": files, "source": source.title})
    if not settings.enabled:
        yield Finding("settings", NOT_ENABLED, WARNING, "set enabled = true")
    yield from _unread_files(files, source)
    yield from _unread_variables(files, settings)
    report = check_source(source)
    with_own_finding = {NOT_ENABLED, *headers_of_no_proxy(settings), *notes_on_deployment(source)}
    for problem in report["problems"]:
        if problem in with_own_finding:
            continue
        yield Finding("rules", problem, PROBLEM, "run `ratelimit-mw check` for the rule and its place")
    for line in report["notes"]:
        if line not in with_own_finding:
            yield Finding("rules", line, NOTE)
    names = [rule.name for rule in source.rules.rules]
    yield Finding("rules", f"{len(names)} in effect: {', '.join(names) or 'none'}", data={"rules": names})


def _unread_files(files: list[str], source: Source) -> Iterator[Finding]:
    """Find settings files in the current folder that the application does not read."""
    for name in _FILES:
        if Path(name).is_file() and os.path.realpath(name) not in files and not source.overview.is_file:
            fix = f'pass settings="{name}" to the middleware, or remove the file'
            yield Finding("settings", f"{name} in this folder is not read by the application", WARNING, fix)


def _unread_variables(files: list[str], settings: Settings) -> Iterator[Finding]:
    """Find variables such as RATELIMIT_STORE that the settings do not name."""
    texts = "".join(map(_text_of, files))
    for name, value in os.environ.items():
        if not name.startswith(_VARIABLE) or f"${{{name}}}" in texts or value == settings.store:
            continue
        setting = name.removeprefix(_VARIABLE).lower()
        is_lost = setting == "store" and redacted_url(settings.store).startswith("memory:")
        if not (files or is_lost):  # the code of the application may read it
            continue
        text = f"the environment variable {name} is set, but no settings read it"
        effect = ", so each process counts in its own memory" * is_lost
        fix = f'write {setting} = "${{{name}}}" in the settings file, or unset the variable'
        yield Finding("environment", f"{text}{effect}", PROBLEM if is_lost else WARNING, fix)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has changed since it was loaded
        return ""


def examine_proxies(settings: Settings) -> Iterator[Finding]:
    """Yield the proxies whose header is believed, and those that are too many."""
    trusted = settings.trusted_proxies
    if trusted:
        text = f"{settings.forwarded_header} is read from {', '.join(trusted)}"
        yield Finding("proxies", text, data={"trusted": list(trusted), "header": settings.forwarded_header})
    else:
        text = "none is trusted: behind a proxy, all clients share the count of its IP address"
        yield Finding("proxies", text, NOTE, "behind a proxy, set trusted_proxies", {"trusted": []})
    for text in headers_of_no_proxy(settings):
        yield Finding("proxies", text, PROBLEM, "set trusted_proxies, or remove the header")
    yield from _wide_proxies(trusted)
    servers = os.environ.get(_PROXY_VARIABLE, "")
    if servers and trusted:
        text = f"{_PROXY_VARIABLE}={servers} makes the server read the header of proxies, too"
        yield Finding("proxies", text, WARNING, f"let one program read it: set {_PROXY_VARIABLE} to an empty text")


def _wide_proxies(trusted: Iterable[str]) -> Iterator[Finding]:
    for text in trusted:
        network = None if text == UNIX else parse_network(text)
        if network is None or (network.is_private and network.prefixlen):
            continue
        if network.prefixlen == 0:
            problem = f"{text} trusts every client, so each client can choose its own IP address"
            yield Finding("proxies", problem, PROBLEM, "name the addresses of your proxies only")
        elif network.num_addresses > _WIDE and network.version == 4:
            problem = f"{text} trusts {network.num_addresses:,} public addresses"
            yield Finding("proxies", problem, WARNING, "name the networks of your proxies only")


def examine_headers(settings: Settings) -> Finding:
    """Return the families of headers that clients see."""
    families = " and ".join(settings.headers) or "only retry-after"
    return Finding("headers", f"{families}, reset as {settings.reset}", data={"headers": list(settings.headers)})
