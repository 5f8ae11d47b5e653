"""Checks the language of pages, package, examples and scripts: `python docs/check_words.py [FILE]...`.

It looks for the words of words.toml, for sentences of more than 30 words, and for pages that do not address the reader.
In tests, it looks for the banned words only.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = tomllib.loads((Path(__file__).with_name("words.toml")).read_text())
SOURCES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**/*.md",
    "docs/*.py",
    "examples/**/*.md",
    "examples/**/*.py",
    "benchmarks/*.py",
    "pytest_ratelimit_mw.py",
    "pyproject.toml",
    "Makefile",
    "ratelimit_mw/**/*.py",
    "ratelimit_mw/**/*.lua",
    "tests/**/*.py",
)
MOST_WORDS = 30

_CODE = re.compile(r"(`+)(?!`).*?\1|https?://\S+|<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^Examples?:\n(?:    .*\n?|\n)*|^ *>>>(?:.+\n?)*", re.MULTILINE)
_ITEM = re.compile(r"\s*(?:[-*>] |\d+\. |#+ |\*{0,2}\w+(?: \([^)]*\))?: )")
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=[\s)\"*]+[A-Z`\[\"(X]|$)|\Z)", re.DOTALL)

Blocks = Iterator[tuple[int, str]]  # the line that a paragraph starts on, and its text
Problem = tuple[int, str, str]  # line, kind, and what to write
Counts = dict[str, dict[str, int]]  # by file and kind


def markdown(text: str) -> Blocks:
    """Paragraphs, list items, headings and table cells of a page."""
    text = re.sub(r"\]\([^)]*\)", "]", _CODE.sub(_blank, _FENCE.sub(_blank, text)))
    text = re.sub(r"^\|.*$", lambda row: row[0].replace("|", "\0"), text, flags=re.MULTILINE)
    for line, block in _blocks(text):
        yield from ((line + block[: part.start()].count("\n"), part[0]) for part in re.finditer(r"[^\0]+", block))


def python(text: str) -> Blocks:
    """Docstrings, comments, and the strings of a module that hold prose."""
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            if id(node) in docstrings:
                docstring = _CODE.sub(_blank, _EXAMPLE.sub(_blank, cleandoc(node.value)))
                yield from ((node.lineno + line - 1, block) for line, block in _blocks(docstring))
            elif re.search(r"[a-z]+ [a-z]+ [a-z]+", node.value):
                yield node.lineno, node.value
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# type:"):
            lines[token.start[0] - 1] = token.string.strip("# ").partition("noqa")[0]
    yield from _blocks(_CODE.sub(_blank, "\n".join(lines)))


def lua(text: str) -> Blocks:
    """Comments of a script."""
    return _blocks("\n".join(line.partition("--")[2] for line in text.splitlines()))


def hashes(text: str) -> Blocks:
    """Comments of a TOML file or a Makefile."""
    lines = (line.partition("# ") for line in text.splitlines())
    # A comment beside code is a paragraph of its own.
    return _blocks("\n".join(f"- {comment}" if code.strip() and comment else comment for code, _, comment in lines))


def _blank(found: re.Match[str]) -> str:
    return "X" + "\n" * found[0].count("\n")


def _blocks(text: str) -> Blocks:
    """Paragraphs; list items and arguments are paragraphs of their own."""
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if block and (not line.strip() or _ITEM.match(line)):
            yield number - len(block), "\n".join(block)
            block = []
        if line.strip():
            block.append(line.strip())


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s"), re.IGNORECASE)


def matches(pattern: re.Pattern[str], blocks: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Each match with its line."""
    return [
        (line + text[: match.start()].count("\n"), " ".join(match[0].split()))
        for line, text in blocks
        for match in pattern.finditer(text)
    ]


def check(path: Path) -> list[Problem]:
    """The problems of a file. Words with a rate are problems when there are more than their rate."""
    blocks = list({".md": markdown, ".py": python, ".lua": lua}.get(path.suffix, hashes)(path.read_text()))
    thousands = sum(len(text.split()) for _, text in blocks) / 1000
    found: list[Problem] = []
    for pattern, advice in WORDS["banned"].items():
        words = matches(_compiled(rf"\b(?:{pattern})\b"), blocks)
        found += [(line, "banned", f'"{word}": {advice}') for line, word in words]
    for kind, rate in WORDS["rates"].items():
        words = matches(_compiled(rate["pattern"]), blocks)
        if len(words) > rate["most"] * thousands:
            found += [(line, kind, f'"{word}": {rate["advice"]}') for line, word in words]
    for line, sentence in matches(_SENTENCE, blocks):
        if (length := len(re.findall(r"\w[\w'/.-]*", sentence))) > MOST_WORDS:
            found.append((line, "long", f"{length} words in a sentence: write several, of at most {MOST_WORDS} words"))
    if path.suffix == ".md" and thousands > 0.3:
        addressed = len(matches(re.compile(r"\b[Yy]our?\b"), blocks))
        if not WORDS["you"]["least"] <= addressed / thousands <= WORDS["you"]["most"]:
            found.append((1, "you", f'"you" and "your" {addressed} times: address the reader, not too often'))
    return sorted(found)


def main(arguments: list[str]) -> int:
    files = [Path(name).resolve() for name in arguments]
    paths = files or [path for pattern in SOURCES for path in ROOT.glob(pattern) if path.name != "test_words.py"]
    messages = []
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        is_test = name.startswith("tests/")  # the strings of tests are code, data and messages
        messages += [f"{name}:{n}: {text}" for n, kind, text in check(path) if kind == "banned" or not is_test]
    print("\n".join(messages) or "words: no problems")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
