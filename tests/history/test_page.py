"""The page: one file that loads nothing, whose texts stay texts, and which a browser draws without
an error. The tests that need Chromium are skipped where there is none."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.report import entries
from scripts import chromium
from taskd.history.log_files import Told
from taskd.history.reading import Record
from taskd.history.report.page import ALL, LIVE, SCRIPTS, STYLES, WEB, data, embedded, page
from taskd.history.report.rounds import WORST
from tests.history.journals import (
    BEGIN,
    DEATH,
    END,
    KILLED,
    SHRUNK,
    STORY,
    incident,
    join,
    record,
    start,
    times,
    told,
)

HOSTILE = (
    "rank 1: </script><script>document.title='broken out'</script>",
    "rank 2: <img src=x onerror=\"document.title='broken out'\">",
    "rank 4: </script x><b id=out>, </SCRIPT/",
    "rank 3: <!--<script> ]]> &lt;b&gt; %DATA% %SCRIPT% \u2028 \ud800 \x00 \x1b[2J",
)
needs_chromium = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed")


class Parsed(HTMLParser):
    """Which elements a page has, and what is in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.blocks: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        if self.tags[-1:] in (["script"], ["style"]) and len(data) > 1:
            self.blocks.append(data)


def hostile():
    faults = [incident(n, 200.0 * n, 1.0, text, strategy=text) for n, text in enumerate(HOSTILE, 1)]
    name = "</title><script>document.title='broken out'</script>%STYLE%"
    return told([start(job=name), *BEGIN[1:], *faults, record("end", 1100.0, reason=HOSTILE[0])])


def data_of(text: str):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_one_file_that_loads_nothing():
    text = page(told([*STORY, END]))
    assert not re.findall(r"(?:src|href|action)=\"(?!data:,)", text)
    for word in ("http://", "https://", "@import", "url(", "innerHTML", "eval(", "fetch("):
        assert word not in re.sub(r"http://www\.w3\.org/2000/svg|url\(#inside\)", "", text), word
    assert {*SCRIPTS, LIVE, *STYLES, "page.html"} == {p.name for p in WEB.iterdir()}
    # one that is served asks for data where it comes from, and nowhere else
    served = page(told([*STORY, END]), live=True)
    assert re.findall(r'fetch\("(.*?)"', served) == ["data"] and "connect-src 'self'" in served
    assert "connect-src" not in text


def test_the_policy_allows_its_own_script_and_style_alone():
    text = page(told([*STORY, END]))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag, body in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*?)</script>")):
        block = re.search(body, text, re.DOTALL)
        assert block is not None
        digest = base64.b64encode(hashlib.sha256(block[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]


def test_hostile_texts_stay_texts():
    plain, text = Parsed(page(told([*STORY, END]))), page(hostile())
    found = Parsed(text)
    assert found.tags == plain.tags
    assert [name for name, _ in found.attributes] == [name for name, _ in plain.attributes]
    # the data say exactly what was said
    assert [i["faults"] for i in data_of(text)["incidents"]] == [[said] for said in HOSTILE]
    assert "</script><script>document" not in text
    text.encode()  # a lone surrogate would not be text for a file


@settings(max_examples=50)
@given(st.text())
def test_data_in_the_page_cannot_end_their_block(said):
    told_ = embedded({"said": said})
    assert not set("<>&\u2028\u2029") & set(told_)
    assert json.loads(told_) == {"said": said}


def test_of_many_ranks_the_last_and_the_replaced_are_shown():
    ranks = 10_000
    committed = [100.0 + rank % 50 for rank in range(ranks)]
    committed[7777] = 900.0
    rounds = [{"round": 1, "strategy": "x", "began": 0.0, "committed": committed}]
    account = told([*BEGIN, incident(1, 200.0, 1.0, "rank 5: x", ranks=[5], rounds=rounds)])
    (shown,) = data(account)["incidents"][0]["rounds"]
    assert shown["all"] == ranks and len(shown["ranks"]) <= WORST
    assert shown["ranks"][0] == 7777 and 5 in shown["ranks"]
    assert shown["nodes"][0] == 3888 and len(shown["nodes"]) == len(shown["ranks"])
    assert shown["moments"][-1][0] == 900.0
    # of the others: the first, the middle, and the last
    first, _, last = shown["folded"][-1]
    assert first == 100.0 and last <= 149.0


def test_of_a_job_too_large_to_tell_all_what_the_journal_has_is_shown():
    event = {"ranks": 20_000, "first": 90.0, "last": [[19_000, 410.5], [3, 400.0]]}
    rounds = [{"round": 1, "strategy": "x", "began": 0.0, "interrupted": event}]
    account = told([*BEGIN, incident(1, 200.0, 1.0, "rank 5: x", rounds=rounds)])
    (shown,) = data(account)["incidents"][0]["rounds"]
    assert (shown["all"], shown["ranks"]) == (20_000, [3, 19_000])
    assert shown["moments"] == [[400.0, 410.5], None, None, None, None]
    assert shown["folded"] == [[90.0, None, None], None, None, None, None]


def test_the_times_of_a_job_whose_ranks_were_away():
    (first, second) = data(told([*SHRUNK, END]))["shrunk"]
    assert (first["began"], first["seconds"], first["shares"]) == (300.0, 100.0, 2)
    assert (first["who"], second["who"]) == ("ranks 2-3", "ranks 2-5")


def test_few_ranks_are_all_shown():
    account = told([*STORY, END])
    (shown,) = data(account)["incidents"][0]["rounds"]
    assert shown["ranks"] == [0, 1, 2, 3, 4, 5] and len(shown["ranks"]) < ALL
    assert shown["moments"][1] == [None, None, None, 2500.0, None, None]


def test_a_page_of_a_thousand_ranks_is_small():
    told_ = [Record(e.pop("kind"), e.pop("time"), e) for e in entries(400, 1000)]
    assert len(told_) > 4000
    assert len(page(told(told_))) < 5e6


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with chromium.Browser() as opened:
        yield opened


def show(browser, directory: Path, account, part: str = "") -> None:
    path = directory / "report.html"
    path.write_text(page(account), encoding="utf-8")
    browser.said.clear()
    browser.requests.clear()
    browser.open(path.as_uri() + part)
    assert browser.value("document.documentElement.dataset.drawn") is not None, browser.said


def text_of(browser, selector: str) -> str:
    return browser.value(f"document.querySelector({selector!r}).textContent")


def count(browser, selector: str) -> int:
    return browser.value(f"document.querySelectorAll({selector!r}).length")


@needs_chromium
def test_a_browser_draws_it(browser, tmp_path):
    show(browser, tmp_path, told([*STORY, END]))
    assert text_of(browser, "#job") == "job llm-7b"
    assert text_of(browser, "#summary").startswith("Ended well at step 430")
    assert "92.8%goodput" in text_of(browser, "#figures")
    assert count(browser, "#timeline .mark") == 3 and count(browser, "#timeline .pause") == 1
    assert count(browser, "#list .row[role=option]") == 3
    assert "node 1 (10.0.0.2)" in text_of(browser, "#tables")
    assert "rank 5, node 2" in text_of(browser, "#tables")
    assert "10.0 s, as long as this job took to start" in text_of(browser, "#assumed")
    assert browser.said == []
    assert [r for r in browser.requests if r.startswith("http")] == []


@needs_chromium
def test_a_browser_draws_when_ranks_were_away(browser, tmp_path):
    show(browser, tmp_path, told([*SHRUNK, END]))
    assert count(browser, "#timeline rect.shrunk") == 2
    assert "ranks were away" in text_of(browser, "#timeline-legend")
    assert "4 of 6up to 2 ×ranks 2-3" in text_of(browser, "#tables")
    assert browser.said == []


@needs_chromium
def test_the_keyboard(browser, tmp_path):
    show(browser, tmp_path, told([*STORY, END]))
    browser.press("ArrowDown")
    assert text_of(browser, "[aria-selected=true]").startswith("1")
    assert browser.value("document.querySelector('#detail').hidden")
    browser.press("Enter")
    detail = text_of(browser, "#detail")
    assert "Incident 1" in detail and "killed by SIGKILL" in detail
    assert "replace rank 3 on the same node (passed over: retry: rank 3 has no process)" in detail
    # the job and six ranks
    assert count(browser, "#detail .gantt .name") == 7
    # of the job and of the replacement
    assert count(browser, "#detail .gantt .REPLACE") == 2
    # each rank's wait ends, and its work begins, with the phase of the job
    bars = "[...document.querySelectorAll('#detail .gantt .RESUME')]"
    assert browser.value(f"new Set({bars}.map(bar => bar.getAttribute('x'))).size") == 1
    assert browser.value(f"{bars}.length") == 7
    browser.press("ArrowDown")  # the open one follows
    assert "Incident 2" in text_of(browser, "#detail")
    browser.press("Escape")
    assert browser.value("document.querySelector('#detail').hidden")
    browser.press("/")
    for letter in "rank 3":
        browser.press(letter)
    assert text_of(browser, "#found") == "1 of 3 incidents"
    browser.press("Escape")
    assert text_of(browser, "#found") == "3 incidents"
    browser.press("?")
    assert browser.value("document.querySelector('#help').open")
    browser.press("Escape")
    assert not browser.value("document.querySelector('#help').open")
    before = browser.value("document.documentElement.dataset.theme")
    browser.press("t")
    assert browser.value("document.documentElement.dataset.theme") != before
    marks = count(browser, "#timeline .mark")
    for _ in range(5):
        browser.press("+")
    assert count(browser, "#timeline .mark") < marks
    browser.press("0")
    assert count(browser, "#timeline .mark") == marks
    assert browser.said == []


@needs_chromium
def test_hostile_texts_in_a_browser(browser, tmp_path):
    show(browser, tmp_path, hostile(), "#incident-1")
    for _ in HOSTILE:
        browser.press("ArrowDown")
        browser.press("Enter")
    assert browser.value("document.title").startswith("taskd report: </title>")
    assert count(browser, "main img, main script, #detail b") == 0
    assert "<!--<script> ]]> &lt;b&gt; %DATA%" in text_of(browser, "#detail")
    assert "null" not in text_of(browser, "main")
    assert browser.said == []


# what is beyond the page's edge, or in a box that would have to be scrolled sideways; a text that
# is too long for its cell ends with an ellipsis, and is its title too
CUT = """[...document.querySelectorAll('main *')].filter((e) => {
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  const scrolls = style.overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 1;
  const clipped = scrolls && style.textOverflow !== 'ellipsis' && e.tagName !== 'svg';
  return (box.width && (box.right > innerWidth + 1 || box.left < -1) && !e.closest('[clip-path]'))
    || clipped;
}).map((e) => e.outerHTML.slice(0, 120))"""


@needs_chromium
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_cut_off(browser, tmp_path, width):
    strategies = ("recover-in-place", "elastic-training", "retry", "pod-rescheduling", "grow")
    phases = {"INTERRUPT": 0.5, "RESCHEDULE": 12.5, "REPLACE": 2.0, "RESUME": 1.0}
    others = [
        incident(n, 700.0 + 10 * n, 3723.0, KILLED, strategy=strategy, phases=phases)
        for n, strategy in enumerate(strategies, 10)
    ]
    machines = [
        record("join", 92.0 + n, **{**join(n, f"10.11.12.{n}").data, "about": about(n)})
        for n in range(3)
    ]
    long = record("death", 200.1, **{**DEATH.data, "traceback": f"{'x' * 900}\n" * 3})
    records = [start(settings={"TASKD_LOG_PATH": "/a" * 90}), *machines, *BEGIN[4:], long]
    records += [*map(times, (170.0, 180.0)), *STORY[len(BEGIN) :], *others, END]
    logs = {0: (Told("worker-3", ((200.1, f"WARNING {'y' * 400}"),)),)}
    browser.resize(width, 800)
    try:
        show(browser, tmp_path, told(records, logs=logs), "#incident-1")
        assert browser.value("document.documentElement.scrollWidth") == width
        assert browser.value(CUT) == []
        assert count(browser, "#detail .gantt .name") == 7
        assert "pid 4711 · node 1 · gpu-1 (10.11.12.1)" in text_of(browser, "#detail")
        assert "Not the same on all nodes: torch" in text_of(browser, "#steps")
        for phase in phases:
            assert phase in text_of(browser, "#tables .repairs")
    finally:
        browser.resize(1200, 900)
    assert browser.said == []


def about(n: int) -> dict[str, object]:
    return {"host": f"gpu-{n}", "torch": f"2.{n}.0", "python": "3.11.7", "cpus": 96}


@needs_chromium
def test_step_times_in_a_browser(browser, tmp_path):
    records = [*BEGIN, times(170.0, [[0.1, 90], [0.2, 9]]), times(180.0, [[0.1, 50], [4.0, 1]])]
    show(browser, tmp_path, told([*records, END]))
    assert count(browser, "#steps rect.bar") == 2 and count(browser, "#steps rect.tail") == 1
    shown = text_of(browser, "#steps")
    assert "median 100 ms" in shown and "99 % 200 ms" in shown and "150 attempts" in shown
    assert count(browser, "#timeline path.p99") == 1
    # both axes of it say what they are
    lanes = browser.value(
        "[...document.querySelectorAll('#timeline .lane')].map(e => e.textContent)"
    )
    assert lanes == ["goodput, %", "steps/min", "step time"]
    assert browser.said == []


@needs_chromium
def test_the_mouse_on_the_timeline(browser, tmp_path):
    show(browser, tmp_path, told([*STORY, END]))
    box = "document.querySelector('#timeline').getBoundingClientRect()"
    x, y, width = (browser.value(f"{box}.{name}") for name in ("x", "y", "width"))
    seen = "document.querySelectorAll('#timeline .mark').length"
    left, right = x + width * 0.5, x + width * 0.6
    browser.mouse(("Moved", right, y + 60))
    assert "goodput" in text_of(browser, "#readout")
    # the incidents are at a tenth, two fifths and a half of the time
    browser.mouse(("Pressed", left, y + 60), ("Moved", right, y + 60), ("Released", right, y + 60))
    assert browser.value(seen) == 1
    for clicks in (1, 2):
        browser.mouse(("Pressed", left, y + 60), ("Released", left, y + 60), clicks=clicks)
    assert browser.value(seen) == 3
    assert browser.said == []


@needs_chromium
def test_paper(browser, tmp_path):
    browser.resize(390, 800)
    try:
        show(browser, tmp_path, told([*STORY, END]), "#incident-1")
        browser.paper(tmp_path / "report.pdf")
    finally:
        browser.resize(1200, 900)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert browser.said == []


@needs_chromium
@pytest.mark.parametrize("records", [STORY[:1], STORY[:5], STORY[:10], [*BEGIN, END]])
def test_a_journal_that_has_hardly_begun(browser, tmp_path, records):
    show(browser, tmp_path, told(records))
    browser.press("ArrowDown")
    browser.press("Enter")
    assert not set(text_of(browser, "main").split()) & {"null", "undefined", "NaN"}
    assert browser.said == []


@needs_chromium
def test_a_large_job_has_few_elements(browser, tmp_path):
    """How fast it opens is measured by benchmarks/report.py."""
    records = [Record(e.pop("kind"), e.pop("time"), e) for e in entries(400, 10_000)]
    account = told(records)
    assert len(account.job.incidents) == 400
    show(browser, tmp_path, account, "#incident-1")
    assert text_of(browser, "#found") == "400 incidents"
    assert count(browser, "*") < 3500
    assert "other ranks" in text_of(browser, "#detail .folded")
    browser.press("End")
    browser.value("document.querySelector('#list').scrollTop = 1e6")
    assert browser.said == []
