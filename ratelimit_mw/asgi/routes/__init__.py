"""The routes of ASGI applications, found without asking the router of the framework."""
