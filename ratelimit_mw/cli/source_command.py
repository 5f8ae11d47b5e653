"""A command that takes either FILE or ``--app``, and that a framework offers for its own application."""

from collections.abc import Callable
from copy import copy
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

import click

from .application import open_application
from .output import examples_of
from .source import Source

_HAS_APP: Final = "ratelimit_mw.app"
_APP: Final = " --app shop:app"
"""How the examples of a command name the application."""
_ABOUT_APP: Final = (
    "FILE contains only settings. With --app, the command imports your application and also knows the rules of its"
    " decorators."
)
_OF_LOG: Final = (
    "For the events of a traffic log, run: ratelimit-mw traffic URL. For the clients of an event, run: ratelimit-mw"
    " traffic URL EVENT --top 10"
)


class SettingsFile(click.Path):
    """The path of a settings file. The URL of a traffic log is an error that names the command for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(f"expected a settings file; got a URL. {_OF_LOG}", param, ctx)
        return super().convert(value, param, ctx)


class SourceCommand(click.Command):
    """A command that takes either FILE or ``--app``. Its function gets a `Source`."""

    open_app: Callable[[], Source] | None = None

    def __init__(self, *, params: list[click.Parameter], **kwargs: Any) -> None:
        file = click.Argument(["file"], type=SettingsFile(exists=True, dir_okay=False, path_type=Path))
        text = "Use an application instead of FILE, with its decorators and routes."
        app = click.Option(["--app"], metavar="MODULE:APP", help=text)
        super().__init__(params=[file, app, *params], **kwargs)
        self.help = f"{cleandoc(self.help or '')}\n\n{_ABOUT_APP}"

    def within(self, program: str, open_app: Callable[[], Source]) -> "SourceCommand":
        """Return this command for a program that knows the application, such as "flask ratelimit"."""
        own = copy(self)
        own.open_app = open_app
        own.params = [param for param in self.params if param.name not in ("file", "app")]
        own.help = (self.help or "").removesuffix(_ABOUT_APP)
        lines = [line.strip() for line in (self.epilog or "").splitlines() if _APP in line]
        own.epilog = examples_of(line.replace("ratelimit-mw", program, 1).replace(_APP, "") for line in lines)
        return own

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_HAS_APP] = any(arg.partition("=")[0] == "--app" for arg in args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [param for param in params if param.name != "file"] if ctx.meta.get(_HAS_APP) else params

    def invoke(self, ctx: click.Context) -> Any:
        file, app = ctx.params.pop("file", None), ctx.params.pop("app", None)
        if self.open_app is not None:
            source = self.open_app()
        else:
            source = Source.from_file(file) if app is None else open_application(app)
            source.arguments = (str(file),) if app is None else ("--app", app)
        ctx.params["source"] = source
        return super().invoke(ctx)
