"""A shop behind ratelimit_mw. django_ratelimit_before.py is the same shop behind django-ratelimit."""
# Run it: gunicorn --chdir examples/migrating django_ratelimit_after:application --bind 127.0.0.1:8000

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from ratelimit_mw.django import limit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    SECRET_KEY="for this example only",
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={
        "rules": [
            {"name": "api", "key": "header:x-api-key", "limits": "3/60", "match": {"path": ["/items", "/prices"]}}
        ],
        "features": {"client": f"{__name__}.client"},
        "rejection": f"{__name__}.slow_down",
    },
)


def slow_down(request, verdict):
    return HttpResponse("slow down\n", status=429)


def home(request):
    return HttpResponse("home\n")


@limit("5/m", key="ip")
@limit("2/60s", key="get:q")
def search(request):
    return HttpResponse("results\n")


@limit("2/h", key="post:username", match={"methods": "POST"})
def login(request):
    return HttpResponse("welcome\n")


def items(request):
    return HttpResponse("items\n")


def prices(request):
    return HttpResponse("prices\n")


def client(request):
    return request.headers.get("X-Client", "")


@limit("1/m", key="client", per_key={"partner": (4, 60)})
def export(request):
    return HttpResponse("everything\n")


@limit("1/d", key="ip", mode="shadow")
def contact(request):
    limited = any(not decision.allowed for decision in request.ratelimit.decisions)
    return HttpResponse("solve this first\n" if limited else "sent\n")


class Basket(View):
    @method_decorator(limit("2/m", key="ip"))
    def post(self, request):
        return HttpResponse("added\n")


urlpatterns = [
    path("", home),
    path("search", search),
    path("login", login),
    path("items", items),
    path("prices", prices),
    path("export", export),
    path("contact", contact),
    path("basket", Basket.as_view()),
]
application = get_wsgi_application()
