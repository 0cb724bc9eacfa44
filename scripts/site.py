"""A mkdocs hook: adds pages from outside docs/ to the site and adjusts their links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / source).read_text())
        text = text.replace("](README.md", "](index.md")
        files.append(File.generated(config, page, content=text))
    for source in FILES:
        files.append(File.generated(config, source, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Keep links out of docs/ inside the site: drop one `../` at the page's depth."""
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({up}../", f"]({up}")
