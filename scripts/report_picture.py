"""Makes README's first picture, docs/report.webp: the report of a real run, with an incident open.

python scripts/report_picture.py [--html PAGE]

Runs `taskd demo` with three kills, opens its report in Chromium (Debian, Ubuntu: apt install
chromium) and takes a picture. With --html it takes that of a page that is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import chromium

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "report.webp"
WIDTH, MOST = 1000, 100_000  # pixels, bytes
BELOW = "document.querySelector('#detail .gantt').getBoundingClientRect().bottom + 18"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--html", type=Path)
    args = parser.parse_args()
    if chromium.find() is None:
        print(f"no picture: none of {', '.join(chromium.NAMES)} is installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        page = args.html or Path(directory, "report.html")
        if args.html is None:
            demo = [sys.executable, "-c", "from taskd.cli import main; main()", "demo"]
            subprocess.run([*demo, "--kills", "3", "--report", page], cwd=ROOT, check=True)
        take(page)
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")
    if size > MOST:
        print(f"it is too large: at most {MOST:,} bytes are kept", file=sys.stderr)
    return int(size > MOST)


def take(page: Path) -> None:
    with chromium.Browser(WIDTH, 1200) as browser:
        browser.open(f"{page.absolute().as_uri()}#incident-2")
        browser.value("window.scrollTo(0, 0)")
        height = min(int(browser.value(BELOW)), 1600)
        browser.resize(WIDTH, height)
        browser.value("window.scrollTo(0, 0)")
        browser.picture(PICTURE, "webp", quality=80)
        if browser.said:
            raise RuntimeError(f"the page has said: {browser.said}")


if __name__ == "__main__":
    sys.exit(main())
