"""A shop behind django-ratelimit. django_ratelimit_after.py is the same shop behind ratelimit_mw."""
# Run it: gunicorn --chdir examples/migrating django_ratelimit_before:application --bind 127.0.0.1:8000

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django_ratelimit.decorators import ratelimit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    SECRET_KEY="for this example only",
    MIDDLEWARE=["django_ratelimit.middleware.RatelimitMiddleware"],
    RATELIMIT_VIEW=f"{__name__}.slow_down",
)


def slow_down(request, exception):
    return HttpResponse("slow down\n", status=429)


def home(request):
    return HttpResponse("home\n")


@ratelimit(key="ip", rate="5/m")
@ratelimit(key="get:q", rate="2/60s")
def search(request):
    return HttpResponse("results\n")


@ratelimit(key="post:username", rate="2/h", method="POST")
def login(request):
    return HttpResponse("welcome\n")


@ratelimit(group="api", key="header:x-api-key", rate="3/60")
def items(request):
    return HttpResponse("items\n")


@ratelimit(group="api", key="header:x-api-key", rate="3/60")
def prices(request):
    return HttpResponse("prices\n")


def client(group, request):
    return request.headers.get("X-Client", "")


def rate(group, request):
    return (4, 60) if request.headers.get("X-Client") == "partner" else "1/m"


@ratelimit(key=client, rate=rate)
def export(request):
    return HttpResponse("everything\n")


@ratelimit(key="ip", rate="1/d", block=False)
def contact(request):
    return HttpResponse("solve this first\n" if request.limited else "sent\n")


class Basket(View):
    @method_decorator(ratelimit(key="ip", rate="2/m"))
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
