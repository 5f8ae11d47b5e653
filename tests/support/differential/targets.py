"""Hostile targets for an application behind a gateway, and the rules that they try to pass."""

import re
from random import Random
from typing import Final

from . import words
from .hostile import HostileRequest

KEY: Final = "api_key"
KEYED: Final = "keyed"
VIEWS: Final = {
    "/login": "limited",
    "/items/{id}": "limited",
    "/files/{rest:path}": "limited",
    "/admin/{rest:path}": "limited",
    "/health": "exempt",
    "/static/{rest:path}": "exempt",
    "/keyed": KEYED,
    "/": "other",
    "/{rest:path}": "",
}
"""The routes of the application, and what protects them. Of a path of the last one, only readers by hand tell."""
KINDS: Final = {
    "/login|/items/[^/]+|/files(/.*)?|/admin(/.*)?": "limited",
    "/health|/static(/.*)?": "exempt",
    "/keyed": KEYED,
}
"""The same for the paths that readers by hand see, as regular expressions."""
CLOSED: Final = "closed.test"
"""The host whose only open paths are the exempt ones."""
RULES: Final = """
exempt = ["/health", "/static/**"]
""" + "".join(
    f'[[rules]]\nname = "{name}"\nmatch = {{ {match} }}\nkey = [{key}]\nlimits = "1/day"\n'
    for name, match, key in (
        ("login", 'path = "/login"', ""),
        ("items", 'path = "/items/{id}"', ""),
        ("files", 'path = ["/files/**", "/admin/**"]', ""),
        ("closed", f'host = "{CLOSED}"', ""),
        (KEYED, 'path = "/keyed"', f'"query:{KEY}"'),
    )
)
SPENDING: Final = ("/login", "/items/7", "/files/a", "/other")
"""One request to each of these uses up all limits but those by key."""

_PATHS: Final = [
    *words.words(" /login /login /login /items/7 /files/a /files/a/b /admin/x /admin /health /static/a.css /static "),
    *words.words(" /keyed /keyed /other / "),
]
_PIECES: Final = [
    *words.PATH_PIECES,
    *words.RAW_PIECES,
    *words.words(" # #/../x #/../health #/../static/a ? ?/../x /../health /../static/a /../login /%2e%2e/login "),
    *words.words(" /..%2fstatic%2fa /x/..;/ ;/../ %23/../x %23 %3f/../x \\..\\ /..\\login %5c..%5cadmin \x01 \x7f "),
    *words.words(" /../../login /.//../ /a//../ //../ /x/%252e%252e/ %00 %0a %0d%0a /./ /%2e/ "),
]
_KEYS: Final = words.words(" K K K k L %4B K%00 K%231 K#1 K#2 K#3 K+ K;x K%0a K&api_key=L &api_key=K K%26 ")
_HOSTS: Final = [
    *[b"shop.test"] * 5,
    *[CLOSED.encode()] * 6,
    *words.words(" CLOSED.test closed.test. closed.test:80 closed.test.:80 closed%2etest closed.test# closed.test/ "),
    *words.words(" x@closed.test closed.test\\x closed.test,shop.test [::1] "),
]


def kind_of(path: str) -> str:
    """Return the kind of a path: what protects it."""
    return next((kind for pattern, kind in KINDS.items() if re.fullmatch(pattern, path)), "other")


def hostile_target(seed: object, number: int) -> HostileRequest:
    """Return one request, which follows from the seed and its number."""
    rng = Random(f"{seed}/{number}")
    target = _target(rng)
    host = rng.choice(_HOSTS)
    lines = [b"Host: " + host]
    if rng.random() < 0.04:
        lines.append(b"Host: " + rng.choice(_HOSTS))
    if rng.random() < 0.06:
        target = rng.choice((b"http://", b"HTTP://", b"http://u@", b"//")) + rng.choice(_HOSTS) + target
    if rng.random() < 0.1:
        lines.append(rng.choice((b"X-Original-URI", b"X-Forwarded-Uri", b"X-Original-Method")) + b": /health")
    if rng.random() < 0.1:
        lines.append(rng.choice((b"X-Forwarded-Host: shop.test", b"Forwarded: for=192.0.2.1;host=shop.test")))
    if rng.random() < 0.1 and target.startswith(b"/"):
        lines.append(rng.choice((b"SCRIPT_NAME: /x", b"Daphne-Root-Path: /x")))
        target = b"/x" + target
    method = rng.choice((b"GET", b"GET", b"GET", b"HEAD", b"POST"))
    if method == b"POST":
        lines.append(b"Content-Length: 0")
    head = b"\r\n".join([b"%s %s HTTP/1.1" % (method, target), *lines, b"", b""])
    return HostileRequest(number, head, "127.0.0.1")


def _target(rng: Random) -> bytes:
    path = rng.choice(_PATHS)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
        at = rng.choice((len(path), rng.randrange(len(path) + 1), path.rfind(b"/"), 0))
        path = path[:at] + rng.choice(_PIECES) + path[at + rng.choice((0, 0, 0, 1)) :]
    if rng.random() < 0.1:
        at = rng.randrange(max(1, len(path)))
        path = path[:at] + b"%%%02x" % path[at] + path[at + 1 :] if path else b"/"
    if not path.startswith(b"/") and rng.random() < 0.9:
        path = b"/" + path
    if b"keyed" in path or rng.random() < 0.2:
        path += b"?" + KEY.encode() + b"=" + rng.choice(_KEYS)
    return path
