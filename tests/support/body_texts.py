"""Bodies of requests in each content type."""

from ratelimit_mw.http.body import Body

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
BOUNDARY = "----b0undary"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


def body(content: object, content_type: str = JSON) -> Body:
    if isinstance(content, str):
        content = content.encode()
    return Body(content, content_type)


def part(value: str | bytes, name: str = "email", more: str = "", headers: str = "") -> bytes:
    """Return one part as browsers write it."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n{headers}\r\n'
    return head.encode() + (value.encode() if isinstance(value, str) else value) + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
