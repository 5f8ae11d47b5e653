"""Body fields are features in Django. Views get their body, even when another middleware read it first."""

import json
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest
from calls import ask
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse, JsonResponse
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart
from django.urls import path
from django_calls import MIDDLEWARE, one_rule, project
from tables import each

both = each("is_async", [False, True])
FORM = "application/x-www-form-urlencoded"


def bodies(email: str) -> dict[str, dict[str, Any]]:
    fields = {"email": email, "word": "a;b"}
    return {
        "form": {"data": f"email={email}&word=a%3Bb", "content_type": FORM},
        "parts": {
            "data": encode_multipart(BOUNDARY, fields),
            "content_type": MULTIPART_CONTENT,
        },
        "json": {"data": json.dumps(fields), "content_type": "application/json"},
    }


def view(request: Any) -> JsonResponse:
    return JsonResponse(json.loads(request.body) if request.content_type == "application/json" else request.POST.dict())


BEFORE = {
    "nothing": lambda request: None,
    "parses": lambda request: request.POST,
    "reads": lambda request: request.body,
}


@both
@each("before", BEFORE)
@each("kind", ["form", "parts", "json"])
def test_a_field_is_found_after_another_middleware_read_the_body(
    is_async: bool, before: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second request with the same email is rejected, another email is served, and the view has the whole body."""

    def reading(get_response: Any) -> Any:
        def middleware(request: Any) -> Any:
            BEFORE[before](request)
            return get_response(request)

        return middleware

    monkeypatch.setattr("django_calls.reading", reading, raising=False)
    limiter = one_rule("1/minute", key=["json:email" if kind == "json" else "form:email"])
    listed = ["django_calls.reading", *MIDDLEWARE]
    with project(limiter, path("", view), is_async=is_async, middleware=listed) as served:
        first, again, other = (
            served.ask(method="POST", **bodies(email)[kind]) for email in ("ann@x.org", "ann@x.org", "bob@x.org")
        )
    assert (first.status_code, first.json()) == (200, {"email": "ann@x.org", "word": "a;b"})
    assert (again.status_code, other.status_code) == (429, 200)


@each("kind", ["parts", "form"])
def test_a_consumed_body_is_invalid_and_not_missing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a middleware outside consumes the stream, all such requests share one count."""
    reading = lambda get_response: lambda request: (request.read(), get_response(request))[1]  # noqa: E731
    monkeypatch.setattr("django_calls.reading", reading, raising=False)
    listed = ["django_calls.reading", *MIDDLEWARE]
    with project(one_rule("1/minute", key=["form:email"]), middleware=listed) as served:
        assert [served.ask(method="POST", **bodies(email)[kind]).status_code for email in "ab"] == [200, 429]


@each(("length", "expected"), [(10, [200, 429, 200]), (100, [200, 429, 429])])
def test_a_body_without_a_length_is_bounded(length: int, expected: list[int]) -> None:
    """Under ASGI a body may come without Content-Length. Django has it whole, and the rule checks its size first."""

    async def body_of(email: str) -> AsyncIterator[bytes]:
        yield f"email={email}&word=".encode().ljust(length, b"x")

    def send(email: str) -> int:
        headers = {"content-type": FORM}
        return ask(ASGIHandler(), method="POST", content=body_of(email), headers=headers).status_code

    limiter = {"limiter": one_rule("1/minute", key=["form:email"]), "body_limit": 30}
    with project(limiter, path("", view)):
        assert [send(email) for email in "aab"] == expected


class Broken(BytesIO):
    def read(self, *_: Any) -> bytes:
        raise OSError


@each("stream", [Broken, BytesIO])
def test_a_truncated_body_is_invalid_and_not_missing(stream: Any) -> None:
    """A body that the client does not finish, or that other code has read, shares the count of all such bodies."""
    limiter = one_rule("1/minute", key=["form:email"])
    with project(limiter, path("", lambda request: JsonResponse({}))) as served:
        sent = [{"content_type": FORM, "data": f"email={email}", "wsgi.input": stream()} for email in "ab"]
        assert [served.ask(method="POST", **one).status_code for one in sent] == [200, 429]


@both
def test_a_bound_over_the_bound_of_django_rejects_no_request(is_async: bool) -> None:
    """A body over DATA_UPLOAD_MAX_MEMORY_SIZE is over the bound, and the view may still read its files."""
    parts = {"email": "ann@x.org", "file": SimpleUploadedFile("a.txt", b"x" * 300)}
    sent = {"data": encode_multipart(BOUNDARY, parts), "content_type": MULTIPART_CONTENT}

    def view(request: Any) -> JsonResponse:
        return JsonResponse({"email": request.POST["email"], "size": request.FILES["file"].size})

    limiter = one_rule("1/minute", key=["form:email"])
    with project(limiter, path("", view), is_async=is_async, DATA_UPLOAD_MAX_MEMORY_SIZE=100) as served:
        first = served.ask(method="POST", **sent)
        assert (first.status_code, first.json()) == (200, {"email": "ann@x.org", "size": 300})
        assert served.ask(method="POST", **sent).status_code == 429


@both
@each("read", ["body", "POST", "FILES", "read", "readlines", "stream"])
def test_a_view_reads_its_body_in_every_way(is_async: bool, read: str) -> None:
    def view(request: Any) -> HttpResponse:
        if read in ("POST", "FILES"):
            content = getattr(request, read)
            return HttpResponse(content["email"] if read == "POST" else content["file"].read())
        if read == "stream":
            return HttpResponse(b"".join(iter(lambda: request.read(7), b"")))
        content = request.body if read == "body" else getattr(request, read)()
        return HttpResponse(b"".join(content) if read == "readlines" else content)

    parts = {"email": "ann@x.org", "file": SimpleUploadedFile("a.txt", b"some text")}
    body = encode_multipart(BOUNDARY, parts)
    expected = {"POST": b"ann@x.org", "FILES": b"some text"}.get(read, body)
    with project(one_rule("1/minute", key=["form:email"]), path("", view), is_async=is_async) as served:
        sent = {"data": body, "content_type": MULTIPART_CONTENT}
        assert served.ask(method="POST", **sent).content == expected
        assert served.ask(method="POST", **sent).status_code == 429
