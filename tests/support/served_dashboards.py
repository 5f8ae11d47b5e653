"""Served by real servers in ``tests/dashboard``: the application of each framework, as its factory.

The environment variables are in ``mounted_dashboards``.
``python -m served_dashboards serve FILE`` is ``ratelimit-mw serve``.
"""

from functools import partial

from mounted_dashboards import application

from ratelimit_mw.cli import main

starlette = partial(application, "starlette")
fastapi = partial(application, "fastapi")
flask = partial(application, "flask")
django = partial(application, "django")
django_asgi = partial(application, "django-asgi")

if __name__ == "__main__":
    main()
