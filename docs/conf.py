"""The site of the documentation: `make site` builds it with Sphinx, and `make docs-site` opens it."""

from importlib.metadata import metadata
from itertools import pairwise
from typing import Any

from django.conf import settings
from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx

settings.configure()  # the modules of Django are imported for their docstrings

project = "ratelimit-mw"
author = "the contributors of ratelimit-mw"
copyright = author  # noqa: A001 (Sphinx reads this name)
version = release = metadata(project)["Version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
smartquotes = False  # options such as --app stay as they are

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"

autodoc_default_options = {"members": True, "imported-members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"ratelimit-mw {version}"
html_theme_options = {
    "source_repository": "https://github.com/ratelimit-mw/ratelimit-mw",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_static_path = html_css_files = ["site.css"]
html_show_sphinx = False

# The search of Sphinx leaves out numbers, but finds entries of the index.
_STATUSES = {
    "how-to/operate/operating": {"429": "a-customer-is-blocked"},
    "reference/headers": {"429": "on-rejected-requests", "403": "on-rejected-requests", "503": "on-rejected-requests"},
    "how-to/cookbook/cookbook": {"429": "let-a-browser-read-the-429"},
}


def _link_to_repository(_app: Sphinx, name: str, source: list[str]) -> None:
    """Point links to files beside docs/ at the repository, which has no page for them."""
    outside = "../" * (name.count("/") + 1)
    source[0] = source[0].replace(f"]({outside}", f"]({html_theme_options['source_repository']}/blob/main/")


def _prepare_docstring(_app: Sphinx, what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Mark the examples of docstrings that are code without prompts as blocks of code."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # an empty comment: napoleon reads a first line with a colon as a type
    for number, (line, following) in enumerate(pairwise(list(lines))):
        if line == "Example:" and not following.lstrip().startswith((">>>", "``")):
            lines[number : number + 1] = ["Example::", ""]


def _index_statuses(app: Sphinx, page: nodes.document) -> None:
    """Make the statuses of rejections entries of the index."""
    for status, section in _STATUSES.get(app.env.docname, {}).items():
        page.insert(0, addnodes.index(entries=[("single", status, section, "", None)]))


def setup(app: Sphinx) -> None:
    """Connect the changes above, and show logs and commands of Redis as plain text."""
    app.connect("doctree-read", _index_statuses)
    app.connect("source-read", _link_to_repository)
    app.connect("autodoc-process-docstring", _prepare_docstring, priority=400)  # before napoleon
    for language in ("log", "redis"):
        app.add_lexer(language, TextLexer)
