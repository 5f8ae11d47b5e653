"""Random and hostile requests. Each follows from the seed and its number alone."""

import json
import re
from itertools import pairwise
from random import Random
from typing import NamedTuple

from . import words
from .words import PROXY, STRANGER

_PLAIN_HOST = re.compile(rb"[\w.]+(?::\d+)?|\[[0-9a-f:]+\]")  # Werkzeug's server never responds to others
BATCH = 24
"""So many requests in a row have one source address, and can share a connection."""
_UNESCAPED = re.compile(rb"[^!-~]")


class HostileRequest(NamedTuple):
    """One request: its bytes, and the source address of its connection."""

    number: int
    raw: bytes
    source: str

    @property
    def is_head(self) -> bool:
        return self.raw.startswith(b"HEAD ")


def hostile_request(seed: object, number: int, header: bytes = b"x-forwarded-for") -> HostileRequest:
    """Return one request. The proxy in front of the application writes ``header``."""
    rng = Random(f"{seed}/{number}")
    method = rng.choice(words.METHODS)
    source = STRANGER if number // BATCH % 3 == 0 else PROXY
    hosts = [b"site.test" if rng.random() < 0.5 else rng.choice(words.HOSTS)]
    if rng.random() < 0.03:
        hosts.append(rng.choice(words.HOSTS))
    lines = [*_host_lines(rng, hosts), *_proxied(rng, source, header), *_key_lines(rng), *_cookie_lines(rng)]
    if rng.random() < 0.05:
        lines.append(rng.choice(words.OTHER_LINES))
    body = b""
    if method.upper() in (b"POST", b"PUT", b"PATCH") or rng.random() < 0.1:
        kinds, body = _content(rng)
        lines += [b"Content-Type: " + kind for kind in kinds]
    rng.shuffle(lines)
    if body:
        framing, body = _framed(rng, body)
        lines += framing
    if rng.random() < 0.02:  # most servers reject these
        lines.append(rng.choice(words.BAD_LINES))
    version = b"HTTP/1.0" if rng.random() < 0.01 else b"HTTP/1.1"
    head = b"\r\n".join([b"%s %s %s" % (method, _target(rng, hosts[0].strip()), version), *lines, b"", b""])
    return HostileRequest(number, head + body, source.decode())


def as_text(request: HostileRequest) -> str:
    """Return a request as text that you can paste into a test."""
    return json.dumps({"source": request.source, "raw": request.raw.decode("latin-1")})


def _target(rng: Random, host: bytes) -> bytes:
    path = rng.choice(words.PATHS)
    for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2, 3))):
        # Most servers reject a target that does not start with a slash.
        at = rng.choice((len(path), rng.randrange(rng.random() > 0.1, len(path) + 1)))
        piece = rng.choice(words.PATH_PIECES if rng.random() < 0.96 else words.RAW_PIECES)
        path = path[:at] + piece + path[at + rng.choice((0, 0, 1)) :]
    if rng.random() < 0.06:
        at = rng.randrange(len(path))
        path = path[:at] + b"%%%02x" % path[at] + path[at + 1 :]
    form = rng.random()
    if form < 0.03:
        path = rng.choice(words.ABSOLUTE) + (host if _PLAIN_HOST.fullmatch(host) else b"x") + path
    elif form < 0.04:
        path = rng.choice(words.TARGETS)
    target = path + b"?" + _fields(rng) if rng.random() < 0.6 else path
    return target if rng.random() < 0.03 else _UNESCAPED.sub(lambda match: b"%%%02X" % match[0][0], target)


def _fields(rng: Random) -> bytes:
    count = rng.choice((0, 1, 1, 1, 2, 2, 3))
    fields = [rng.choice(words.NAMES) + rng.choice(words.EQUALS) + rng.choice(words.VALUES) for _ in range(count)]
    text = rng.choice(words.SEPARATORS).join(fields)
    return text + words.MANY_FIELDS if rng.random() < 0.002 else text


def _host_lines(rng: Random, hosts: list[bytes]) -> list[bytes]:
    if rng.random() < 0.01:
        return []
    return [rng.choice((b"Host: ", b"host: ", b"HOST:")) + host for host in hosts]


def _proxied(rng: Random, source: bytes, header: bytes) -> list[bytes]:
    """Return the lines of forged addresses, and the address that the proxy adds on their right.

    All are one block, because the proxy passes the lines on in their order.
    """
    lines: list[tuple[bytes, bytes]] = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        hops = [rng.choice(words.HOPS) for _ in range(rng.choice((1, 1, 2, 3, 40 if rng.random() < 0.05 else 4)))]
        name = rng.choice((header, header, header.title(), header.upper(), rng.choice(words.OTHER_PROXY_HEADERS)))
        lines.append((name, rng.choice((b", ", b",", b" , ", b";", b",\t")).join(hops)))
    truth = source
    if source == PROXY:
        told, truth = rng.choice(list(words.TOLD[header].items()))
        if lines and lines[-1][0].lower() == header and rng.random() < 0.6:
            lines[-1] = (lines[-1][0], lines[-1][1] + b", " + told)
        else:
            lines.append((rng.choice((header, header.title())), told))
    block = [b"\r\n".join(name + b": " + value for name, value in lines)] if lines else []
    return [*block, b"X-Truth: " + truth]


def _key_lines(rng: Random) -> list[bytes]:
    count = rng.choice((0, 1, 1, 1, 2))
    colons = (b": ", b": ", b":", b":\t")
    return [rng.choice(words.KEY_NAMES) + rng.choice(colons) + rng.choice(words.KEY_VALUES) for _ in range(count)]


def _cookie_lines(rng: Random) -> list[bytes]:
    lines = []
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        pieces = b"".join(rng.choice(words.COOKIE_PIECES) for _ in range(rng.choice((1, 1, 2, 4, 7))))
        lines.append(b"Cookie: " + (b"sid=abc; x=" if rng.random() < 0.4 else b"") + pieces)
    return lines


def _content(rng: Random) -> tuple[list[bytes], bytes]:
    """Return content types, mostly one, and a body."""
    family = rng.choice(("form", "form", "json", "json", "multipart"))
    body = {"form": _fields, "json": _json, "multipart": _multipart}[family](rng)
    if rng.random() < 0.01:
        body = bytes(rng.choice(b'q=&;\r\n-"{}\\\x00\xffa') for _ in range(30))
    families = [rng.choice(list(words.KINDS)) if rng.random() < 0.04 else family]
    if rng.random() < 0.04:
        families = rng.choice(([], [*families, rng.choice(list(words.KINDS))]))
    return [rng.choice(words.KINDS[family]) for family in families], body


def _json(rng: Random) -> bytes:
    colons = (b":", b": ", b" :")
    pairs = [
        rng.choice(words.JSON_NAMES) + rng.choice(colons) + rng.choice(words.JSON_VALUES)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))
    ]
    text = b"{" + rng.choice((b",", b", ", b",\n")).join(pairs) + b"}"
    odd = rng.random()
    if odd < 0.1:
        text = rng.choice((text + b"x", b"[" + text + b"]", text + b"\n", b"//\n" + text, text[:-1], text + text))
    elif odd > 0.998:
        text = b"[" * 3000 + text
    return text.decode("latin-1").encode(rng.choice(words.JSON_ENCODINGS))


def _multipart(rng: Random) -> bytes:
    parts = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        headers = [f"Content-Disposition: {rng.choice(words.DISPOSITIONS)}"]
        if rng.random() < 0.3:
            headers.insert(rng.randrange(2), rng.choice(words.PART_HEADERS))
        line = b"\r\n" if rng.random() < 0.95 else b"\n"
        parts.append(line.join([b"--b", *(header.encode() for header in headers), b"", rng.choice(words.VALUES), b""]))
    return b"".join([rng.choice(words.STARTS), *parts, rng.choice(words.ENDS)])


def _framed(rng: Random, body: bytes) -> tuple[list[bytes], bytes]:
    """Return the header with the length of the body, rarely with a second one, and the body in this frame."""
    if rng.random() > 0.15:
        lines = [b"Content-Length: %d" % len(body)]
        return lines if rng.random() > 0.005 else [*lines, rng.choice((lines[0], b"Content-Length: 0"))], body
    cuts = sorted({0, len(body), *(rng.randrange(len(body) + 1) for _ in range(3))})
    extension = rng.choice((b"", b"", b"", b";x=1"))
    trailer = rng.choice((b"", b"", b"", b"X-Key: trailer\r\n"))
    chunks = [b"%x%s\r\n%s\r\n" % (end - start, extension, body[start:end]) for start, end in pairwise(cuts)]
    framed = b"".join(chunks) + b"0\r\n" + trailer + b"\r\n"
    lines = [b"Transfer-Encoding: chunked"]
    return lines if rng.random() > 0.02 else [b"Content-Length: %d" % len(framed), *lines], framed
