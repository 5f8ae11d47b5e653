"""``migrate django-ratelimit``: decorators behind others, and names that differ."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import start

from ratelimit_mw.cli.migrate.calls import CALLS

HARD_DJANGO = """
import sys
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django_ratelimit.core import is_ratelimited
from django_ratelimit.decorators import ratelimit

settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x",
    RATELIMIT_FAIL_OPEN=True, RATELIMIT_IPV6_MASK=48, RATELIMIT_USE_CACHE="shared",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
    CACHES={"default": {}, "shared": {"BACKEND": "x.RedisCache", "LOCATION": ["redis://:secret@127.0.0.1:6379/1"]}},
)

from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

def who(group, request):
    return "ann"

@method_decorator(ratelimit(key="ip", rate="5/h", method="POST", block=False), name="post")
class Lead(APIView):
    def post(self, request):
        return Response(status=429 if getattr(request, "limited", False) else 200)

@api_view(["POST"])
@ratelimit(key="hard_django.who", rate="5/h", block=True)
def nurse(request):
    return Response({})

@ratelimit(key="header:x_api_key", rate=None)
@ratelimit(key="ip", rate=(10, 60), method=ratelimit.UNSAFE)
def gateway(request):
    limited = is_ratelimited(request, group="chat", key="user", rate="30/m", method="POST", increment=True)
    return HttpResponse("")

class Login(View):
    pass

sys.modules["hard_django"] = sys.modules[__name__]
login = ratelimit(key="post:username", rate="project.rates.of")(Login.as_view())
urlpatterns = [path("", include([path("lead", Lead.as_view())])), path("nurse", nurse), path("g", gateway)]
urlpatterns += [path("login", login)]
application = get_wsgi_application()
"""


def test_decorators_of_django_are_found_behind_others(folder: Path) -> None:
    """Decorators of methods, of REST framework and of URLs, and calls inside views, are found."""
    (folder / "hard_django.py").write_text(HARD_DJANGO)
    result = start("migrate", "django-ratelimit", "hard_django:application", "--json", cwd=folder)
    found = json.loads(result.stdout)
    assert (result.returncode, "secret" in result.stdout + result.stderr) == (1, False)
    assert found["settings"] == {
        "store": "${RATELIMIT_STORE_URL}",
        "on_store_error": "allow",
        "ipv6_prefix": 48,
        "rules": [{"name": "chat", "limits": "30/minute", "key": ["user"], "match": {"view": "", "methods": ["POST"]}}],
    }
    assert {view["view"]: view["decorators"] for view in found["views"]} == {
        "Lead.post": ['@limit("5/hour", match={"methods": "POST"}, mode="shadow")'],
        "nurse": ['@limit("5/hour", key="who")'],
        "gateway": ['@limit("10/minute", match={"methods": ["DELETE", "PATCH", "POST", "PUT"]})'],
        "Login": ['@limit("project.rates.of", key="post:username")'],
    }
    assert found["features"] == {"who": "lambda request: who(None, request)"}
    problems = "\n".join(found["problems"])
    for text in ("is_ratelimited: name a rule", "request.limited: write any(", "project.rates.of returns the rate"):
        assert text in problems


DJANGO_NAMES = """
from django.conf import settings
from django.contrib import admin
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django_ratelimit import core
from django_ratelimit.core import is_ratelimited as limited
from django_ratelimit.decorators import ratelimit

LOCATION = ["127.0.0.1:11211", "127.0.0.1:11212"]
settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x", RATELIMIT_ENABLE=False, INSTALLED_APPS=["django.contrib.auth",
    "django.contrib.contenttypes", "django.contrib.admin", "django.contrib.messages"],
    CACHES={"default": {"BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache", "LOCATION": LOCATION}},
)

def check(request):
    who = "user"
    core.is_ratelimited(request, "mails", None, "ip", "2/m", ["POST"])
    limited(request, group="words", key=who, rate="2/m", increment=True)
    limited(request, group="mails", key="ip", rate="9/m"), limited(request, group="same", key="ip", rate="4/m")
    return HttpResponse("")

@ratelimit(key="user", rate="5/month")
def first(request):
    return HttpResponse("")

@ratelimit(group="same", key="ip", rate="4/m")
def second(request):
    return HttpResponse("")

@ratelimit(group="same", key="ip", rate="9/m")
def third(request):
    return HttpResponse("")

application = get_wsgi_application()
admin.site.login = ratelimit(key="ip", rate="3/m")(admin.site.login)
urlpatterns = [path("a", first), path("b", second), path("c", third), path("d", check), path("e", admin.site.login)]
"""


def test_names_of_django_are_followed(folder: Path) -> None:
    """Other names of the functions, a group with two rates, and values that another file or an expression has."""
    (folder / "names_django.py").write_text(DJANGO_NAMES)
    result = start("migrate", "django-ratelimit", "names_django:application", "--json", cwd=folder)
    found = json.loads(result.stdout)
    assert found["settings"] == {
        "store": "memcached://127.0.0.1:11211,127.0.0.1:11212",
        "enabled": False,
        "rules": [{"name": "mails", "limits": "2/minute", "match": {"view": "", "methods": ["POST"]}}],
    }
    assert found["code"][-2:] == ['same = limit("4/minute", name="same")', 'same_2 = limit("9/minute", name="same-2")']
    assert {view["view"]: view["decorators"] for view in found["views"]} == {
        "first": ['@limit("5/minute", key="user")'],
        "second": ["@same"],
        "third": ["@same_2"],
        "AdminSite.login": ['@limit("3/minute")'],
    }
    shared = found["problems"].pop(3)
    assert shared.startswith(
        "names_django.py:22: is_ratelimited: the decorator with the group 'same' has the same count"
    )
    assert [text.replace("names_django.py", "") for text in found["problems"]] == [
        "AdminSite.login: its code is not in this folder. Write the decorators where you add it",
        ":21: is_ratelimited: write its rule by hand: key is computed",
        ":22: is_ratelimited: another call of 'mails' differs. Write two rules",
        *(f":{line}: is_ratelimited: {CALLS['django-ratelimit']['is_ratelimited']}" for line in (21, 20, 22)),
    ]
    assert "first: user: requests" in str(found["notes"]).replace("names_django.py:25", "first")
