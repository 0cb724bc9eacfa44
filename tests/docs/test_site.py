"""The site that `make site` builds, opened from its files: it loads nothing from elsewhere, its
search and its diagrams work, and it fits a phone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import chromium

INSTALLED = ROOT / ".venv" / "site"
LIMIT = 30.0  # seconds until a script of the page has done its work
SEARCH = """(() => { const box = document.querySelector('.md-search__input');
box.focus(); box.value = 'standby'; box.dispatchEvent(new Event('keyup')); return true })()"""
pytestmark = [
    pytest.mark.long,  # seconds for each page
    pytest.mark.skipif(not (INSTALLED / "complete").exists(), reason="`make site` was not called"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    where = tmp_path_factory.mktemp("site")
    (INSTALLED / "pages").mkdir(exist_ok=True)
    for page in ("api", "commands", "settings"):
        command = [sys.executable, f"scripts/{page}_docs.py"]
        with open(INSTALLED / "pages" / f"{page}.md", "w") as made:
            subprocess.run(command, cwd=ROOT, stdout=made, check=True)
    command = [INSTALLED / "bin" / "mkdocs", "build", "--site-dir", where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return where


@pytest.fixture(scope="module", params=[(1400, False), (390, True)], ids=["wide", "phone"])
def browser(request):
    if chromium.find() is None:
        pytest.skip("there is no Chromium")
    width, dark = request.param
    with chromium.Browser(width, dark=dark) as browser:
        yield browser


def until(browser: chromium.Browser, expression: str) -> None:
    end = time.monotonic() + LIMIT
    while not browser.value(expression):
        assert time.monotonic() < end, f"{expression} is not true: {browser.said}"
        time.sleep(0.1)


def test_pages_load_nothing_from_elsewhere_and_fit(site, browser):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 90
    for page in pages:
        if page.name == "404.html":  # of a server, at its root
            continue
        browser.requests.clear()
        browser.open(page.as_uri())
        assert all(r.startswith(("file:", "data:", "blob:")) for r in browser.requests), page
        assert browser.value("document.documentElement.scrollWidth - innerWidth") <= 0, page
        assert not browser.said, page


def test_the_search_finds_pages(site, browser):
    browser.open((site / "index.html").as_uri())
    until(browser, "document.querySelector('.md-search') !== null")
    until(browser, SEARCH)
    until(browser, "document.querySelectorAll('.md-search-result__item').length > 3")


def test_the_diagrams_are_drawn(site, browser):
    text = (ROOT / "docs" / "concepts.md").read_text()
    browser.open((site / "concepts.html").as_uri())
    drawn = "[...document.querySelectorAll('div.mermaid')].filter(d => d.clientHeight > 200).length"
    until(browser, f"{drawn} === {text.count('```mermaid')}")
