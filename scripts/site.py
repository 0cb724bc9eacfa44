"""A mkdocs hook: adds pages from outside docs/ to the site and adjusts their links, and those that
`make site` has made of docstrings, help and the table of settings; adds the two scripts that the
pages would load from elsewhere, and refuses a page that loads anything from there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
# linked from pages, copied unchanged
FILES = (
    "LICENSE",
    "examples/manager.py",
    "examples/pytorch/train.py",
    "examples/mindspore/train.py",
    "scripts/train_start.sh",
)
MADE = ROOT / ".venv" / "site" / "pages"
# what `make site` has fetched, and its place in the site
FETCHED = ROOT / ".venv" / "site" / "scripts"
SCRIPTS = {
    "mermaid/dist/mermaid.min.js": "assets/mermaid.js",
    "iframe-worker/shim/index.js": "assets/iframe-worker.js",
}
DRAWN = re.compile(r'<pre class="mermaid">.*?</pre>', re.DOTALL)
ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\ssrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*\brel="?(?:canonical|next|prev)\b)[^>]*\shref=["']?(?:https?:)?//[^>]*>"""
)


def on_config(config: Any) -> Any:
    """The decision records follow their index."""
    (inside,) = (part["Inside"] for part in config.nav if "Inside" in part)
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    inside[-1]["Decisions"] += [f"decisions/{path.name}" for path in records]
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / source).read_text())
        text = text.replace("](README.md", "](index.md")
        files.append(File.generated(config, page, content=text))
    for made in sorted(MADE.glob("*.md")):
        files.append(File.generated(config, made.name, content=made.read_text()))
    for source in FILES:
        files.append(File.generated(config, source, content=(ROOT / source).read_text()))
    for source, place in SCRIPTS.items():
        files.append(File.generated(config, place, content=(FETCHED / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Keep links out of docs/ inside the site: drop one `../` at the page's depth."""
    up = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace(f"]({up}../README.md", f"]({up}index.md")
    return markdown.replace(f"]({up}../", f"]({up}")


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme would load mermaid from elsewhere where a page draws with it and does not have
    it. A drawing may be wider than a phone."""
    if DRAWN.search(output):
        up = "../" * page.url.count("/")
        script = f'<script src="{up}assets/mermaid.js"></script>'
        output = DRAWN.sub(r'<div class="drawing">\g<0></div>', output)
        output = output.replace("</head>", f"{script}</head>")
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found[0]}")
    return output
