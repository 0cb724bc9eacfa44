"""Puts the page together: one file that loads nothing, from the files in web/ and the data.

A fault's text may be anything, also HTML. The data are JSON in a block that is no script, in which
every < > & is escaped, so that nothing in it can end the block; the scripts put texts into the page
as text alone. The page's policy allows its own script and style, by their digests, and no other.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from taskd.history.report.account import Account
from taskd.history.report.columns import columns

WEB = Path(__file__).parent / "web"
SCRIPTS = (
    "dom.js",
    "data.js",
    "timeline.js",
    "gantt.js",
    "detail.js",
    "incidents.js",
    "tables.js",
    "keys.js",
    "main.js",
)
STYLES = ("page.css", "parts.css")


def page(account: Account) -> str:
    """The page as text."""
    script = "".join(["'use strict';(()=>{\n", *map(_file, SCRIPTS), "})();\n"])
    style = "".join(map(_file, STYLES))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(f"taskd report: {account.job.name}"),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embedded(columns(account)),
    }
    # in one pass: a part may hold the name of another
    return re.sub(r"%([A-Z]+)%", lambda found: parts[found[1]], _file("page.html"))


def embedded(data: Any) -> str:
    """JSON that can stand inside of a script block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
