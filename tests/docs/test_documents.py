"""What the documents say is so: links lead somewhere, files exist, functions are described. Their
commands: test_commands.py."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.core.incident.phases import FINAL, TABLE, Move, Phase

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
INSTALL_TEXT = {".py", ".md", ".sh", ".txt", ".yaml", ".yml", ".toml", ".html", ".json"}
# `taskd[…]`, and `pip install` with taskd among its arguments
FROM_AN_INDEX = re.compile(
    r"\btaskd\[[a-z]|\bpip3?\s+install(?:\s+[\w.'\"=<>$/-]+(?<![.,;]))*?\s+['\"]?taskd(?![\w./-])"
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.is_file(), f"{target} leads nowhere"
        headings = _headings(linked.read_text()) if anchor else {""}
        assert anchor in headings, f"{target} has no such heading"


def _headings(page: str) -> set[str]:
    return {_anchor(h) for h in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_in_the_tree(document):
    """Names like `core/incident/faults.py` or `benchmarks/` in code marks are files or folders of
    the tree."""
    named = re.findall(
        r"`((?:[\w.-]+/)*[\w-]+\.(?:py|pyx|c|h|sh|txt|md)|(?:[\w.-]+/)+)`", document.read_text()
    )
    outside = {"train.py", "manager.py", "train_start.sh", "torch/distributed/run.py", "taskd_log/"}
    outside |= {"dist/"}  # made by `make wheels`
    outside |= {"__main__.py", "state/"}  # of a user's package, of a dump
    bases = (ROOT, ROOT / "taskd", ROOT / "csrc")
    assert not [
        n for n in named if n not in outside and not any((base / n).exists() for base in bases)
    ]


# scripts of users, and torch's and MindSpore's files
OTHERS = {"torch/distributed/run.py", "mindspore/train/model.py", "manager.py", "train.py"}


@pytest.mark.parametrize(
    "package", sorted((ROOT / "taskd").glob("*/__init__.py")), ids=lambda p: p.parent.name
)
def test_files_that_docstrings_name_exist(package):
    """From the folder of the file that names them, or one above it."""
    for path in package.parent.rglob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        named = set(re.findall(r"(?<![\w/.-])(?:[\w-]+/)*[\w-]+\.py\b(?!\()", doc)) - OTHERS
        folders = [f for f in path.parents if ROOT in (f, *f.parents)]
        assert not [n for n in named if not any((f / n).is_file() for f in folders)], path


# from any phase that waits, the diagram leaves them out
ANYWHERE = {Move.FAULT, Move.DEADLINE, Move.SPENT}


def test_the_phases_of_an_incident_are_those_of_its_table():
    moves = [(phase, move, TABLE[phase][move]) for phase in TABLE for move in TABLE[phase]]
    drawn = [m for m in moves if m[0] is Phase.DETECT or m[1] not in ANYWHERE]
    lines = ["stateDiagram-v2", "    [*] --> DETECT"]
    lines += [f"    {phase.value} --> {after.value}: {move.value}" for phase, move, after in drawn]
    lines += [f"    {phase.value} --> [*]" for phase in TABLE if phase in FINAL]
    assert {after for *_, after in set(moves) - set(drawn)} == {Phase.INTERRUPT, Phase.FAILED}
    text = (ROOT / "docs" / "concepts.md").read_text()
    assert re.findall(r"```mermaid\n(stateDiagram.*?)\n```", text, re.DOTALL) == ["\n".join(lines)]


def test_what_the_walkthrough_names_is_in_its_files():
    text = (ROOT / "docs" / "walkthrough.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([\w/.]+)` \| (.*) \|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    assert f"These are {len({file for _, file, _ in rows})} files" in text
    for _, file, says in rows:
        source = (ROOT / ("" if file.startswith("csrc/") else "taskd") / file).read_text()
        named = set(re.findall(r"`(\w+)`", says))
        assert named and not [n for n in named if not re.search(rf"\b{n}\b", source)], file


def test_nobody_is_told_to_install_taskd_from_an_index():
    """On the index of Python packages this name belongs to somebody else: what is installed is a
    wheel or the source, and beside it packages by their own names."""
    folders = (ROOT / name for name in ("taskd", "docs", "examples", "scripts", "requirements"))
    files = [
        f
        for folder in folders
        for f in folder.rglob("*")
        if f.is_file() and f.suffix in INSTALL_TEXT
    ]
    files += [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / "examples").rglob("Dockerfile*")]
    assert ROOT / "README.md" in files and ROOT / "taskd" / "cli" / "run.py" in files
    assert not [
        f"{file.relative_to(ROOT)}: {found[0]}"
        for file in files
        for found in FROM_AN_INDEX.finditer(file.read_text())
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install 'taskd[torch]'", True),
        ("pip3 install --upgrade taskd", True),
        ("pip install numpy taskd==0.1.0", True),
        ("pip install\n   'taskd[kubernetes]'", True),
        ("with `taskd[metrics]` in the image", True),
        ("pip install '.[torch]'", False),
        ("pip install taskd-0.1.0-cp311-cp311-linux_x86_64.whl", False),
        ("RUN pip3 install $TASKD_WHL", False),
        ("pip install prometheus-client, then start taskd", False),
        ("pip install torch. taskd does the rest", False),
    ],
)
def test_what_installs_a_strangers_package(text, wrong):
    assert bool(FROM_AN_INDEX.search(text)) == wrong


@pytest.fixture(scope="module")
def made():
    """The pages that `make site` makes, by name."""
    made = {}
    for page in ("api", "commands", "settings"):
        command = [sys.executable, f"scripts/{page}_docs.py"]
        made[page] = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    return made


def test_links_of_pages_that_are_made(made):
    for page, text in made.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            path, _, anchor = target.partition("#")
            name = path.removesuffix(".md") or page
            linked = made[name] if name in made else (ROOT / "docs" / path).read_text()
            assert anchor in {"", *_headings(linked)}, f"{page}: {target} leads nowhere"


def test_api_names_every_documented_function(made):
    from taskd import api

    assert len(api.__all__) == 10
    assert not [name for name in api.__all__ if f"### {name}\n" not in made["api"]]


def test_api_names_what_scripts_are_told_to_call(made):
    called = {n for d in DOCUMENTS for n in re.findall(r"\bjob\.([a-z_]+)\b", d.read_text())}
    assert {"steps", "shares"} <= called
    assert not [name for name in called if f"### Job.{name}\n" not in made["api"]]


# each stood for several terms: reported, logged, sent, shown; membership; entry
VAGUE = re.compile(r"(?<![`\w.-])(told|said|standing|doors?)(?![`\w.-])")


def test_docstrings_and_messages_use_terms():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {word}"
        for path in (ROOT / "taskd").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in VAGUE.findall(node.value)
    ]
    assert not found, found
