"""gunicorn behind nginx: `gunicorn -c gunicorn.conf.py app:app`, or `-k gthread wsgi_app:app` for WSGI."""

import os

bind = "unix:/run/shop/app.sock"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))

# For WSGI, write "gthread".
worker_class = "uvicorn_worker.UvicornWorker"
# The threads of a gthread worker.
threads = 8

# Load the application once, then fork. Each worker connects to the store on its own.
preload_app = True

# The socket of gunicornc is in the home folder, which a user of a service may not have.
control_socket_disable = True

# Leave the headers of nginx to the middleware.
forwarded_allow_ips = ""

# Seconds that a stopping worker gives its requests. Let systemd or Docker wait longer.
graceful_timeout = 30
