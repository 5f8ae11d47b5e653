"""``migrate slowapi``: the printed settings, code and decorators decide as the application did before."""

from __future__ import annotations

from pathlib import Path

from migrated import check, fastapi, imported, migrated

ITEMS = """
<limiter>
def who():
    return "all"
def office():
    return False
def plan(key):
    return "3/minute" if key == "0" else "1/minute"
def visitor(request: Request):
    return request.headers["x-visitor"]
def weight(request):
    return 2
@app.get("/items/{number}")
<items>
async def items(request: Request, number: int):
    return number
@app.get("/who")
<who_view>
async def who_view(request: Request):
    return 1
@app.get("/office")
<office_view>
async def office_view(request: Request):
    return 1
@app.get("/plan")
<plan_view>
async def plan_view(request: Request):
    return 1
@app.get("/weight")
<weight_view>
def weight_view(request: Request):
    return 1
"""


def test_the_key_style_url_counts_by_path(folder: Path) -> None:
    """Each decorator counts by path, and functions are called with the request where they take it."""
    text = fastapi(
        ITEMS,
        items='@limiter.limit("2/minute")',
        who_view='@limiter.limit("2/minute", key_func=who)',
        office_view='@limiter.limit("2/minute", exempt_when=office)',
        plan_view="@limiter.limit(plan, key_func=visitor)",
        weight_view='@limiter.limit("4/minute", cost=weight)',
    )
    found = check(
        *text, *(f"GET /items/{number}" for number in range(3)), "GET /who", "GET /office", "GET /weight", "GET /plan"
    )
    assert found["problems"] == []


MIDDLEWARE = """
<limiter>
def plan(key):
    return "4/minute"
def who(request: Request):
    return "all"
<middleware>
@app.get("/a")
<a>
async def a(request: Request):
    return 1
@app.get("/b")
<b>
async def b(request: Request):
    return 1
@app.get("/c")
async def c(request: Request):
    return 1
"""


def test_the_middleware_of_slowapi_adds_default_limits_to_computed_ones(folder: Path) -> None:
    """A view whose limits are functions keeps the default limits, and one with a text does not."""
    text = fastapi(
        MIDDLEWARE,
        ', default_limits=["3/minute"], key_style="endpoint"',
        middleware="app.add_middleware(SlowAPIMiddleware)",
        a="@limiter.limit(plan, key_func=who)",
        b='@limiter.limit("5/minute")',
    )
    check(*text, "GET /a", "GET /b", "GET /c")


NAMESAKES = """
<limiter>
@app.get("/home")
<home>
async def homepage(request: Request):
    return 1
@app.get("/mars")
<home>
async def homepage(request: Request):
    return 1
"""


def test_functions_with_one_name_have_their_decorators_each(folder: Path) -> None:
    """The example in the README of slowapi. It counts both limits for both, so this is a problem."""
    _, text, before = fastapi(NAMESAKES, ', default_limits=["9/minute"]', home='@limiter.limit("2/minute")')
    found = migrated("slowapi", imported(text, before)[0])
    decorators = ['@exempt("default")', '@limit("2/minute", key=["path", "ip"], algorithm="sliding-window-log")']
    assert [view["decorators"] for view in found["views"]] == [decorators] * 2
    assert "2 functions are" in found["problems"][0]
    assert "without SlowAPIMiddleware" in str(found["notes"])


ODD = """
<limiter>
def by(name, request: Request):
    return request.headers.get(name, "none")
class Key:
    def __call__(self, request: Request):
        return request.headers.get("x-a", "none")
    def method(self, request: Request):
        return request.headers.get("x-visitor")
key = Key()
def make(name):
    def inner(request: Request):
        return request.headers.get(name, "none")
    return inner
@app.get("/a")
<a>
def a(request: Request):
    return 1
@app.get("/b")
<b>
def b(request: Request):
    return 1
@app.get("/c")
<c>
def c(request: Request):
    return 1
@app.get("/d")
<d>
def d(request: Request):
    return 1
@app.get("/e")
<e>
def e(request: Request):
    return 1
"""


def test_functions_without_a_name_get_one_each(folder: Path) -> None:
    """A problem names the function and its place. With these names, the printed code works."""
    text = fastapi(
        ODD,
        ', key_style="endpoint", in_memory_fallback_enabled=True, swallow_errors=True',
        a='@limiter.limit("2/minute", key_func=partial(by, "x-visitor"))',
        b='@limiter.limit("2/minute", key_func=key)',
        c='@limiter.limit("2/minute", key_func=key.method)',
        d='@limiter.limit("2/minute", key_func=make("x-visitor"))',
        e='@limiter.limit("2/minute", key_func=make("x-e"))',
    )
    names = [
        'by_2 = partial(by, "x-visitor")',
        "method = key.method",
        'inner = make("x-visitor")',
        'inner_2 = make("x-e")',
    ]
    found = check(*text, *(f"GET /{view}" for view in "abcde"), functions="\n".join(names))
    assert [text.rpartition("Assign it to ")[2] for text in found["problems"]] == [
        f"{name.partition(' ')[0]} in its module" for name in names
    ]
    assert found["settings"]["on_store_error"] == "local"
