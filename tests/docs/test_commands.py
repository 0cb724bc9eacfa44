"""Every block of the pages that people follow is true: scripts train, commands do what they should
(reader.py types them), and outputs are what taskd says.

A block that nothing here covers fails, with its page and line.
"""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import taskd
from taskd.worker.job import Job
from tests.docs import pages
from tests.docs.pages import Block
from tests.docs.reader import Reader, command_of, way

PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/operations.md",
    "docs/troubleshooting.md",
    "docs/monitoring.md",
    "docs/slurm.md",
)


def account(block: Block) -> None:
    """What can be said of a block without running it."""
    if block.kind == "python":
        calls_exist(ast.parse(block.text))
    elif block.kind == "json":
        assert pages.json_lines(block.text)
    for command in block.commands():
        assert way(command) is not None, f"{block}: say how this is run: {command}"
        for name in re.findall(r"(?<![\w./-])taskd (\w+)", command.partition("#")[0]):
            command_of(name)
    for line in block.output():
        wrong = pages.unsaid(line)
        assert not wrong, f"{block}: no command, and nothing that taskd says: {wrong} in {line!r}"


def calls_exist(tree: ast.Module) -> None:
    """What is called of `taskd` and of a job takes these arguments."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Name("taskd" | "job" as owner), name)):
                called = getattr(taskd if owner == "taskd" else Job, name)
                given = [None] * (len(node.args) + (owner == "job"))
                named = {keyword.arg: None for keyword in node.keywords if keyword.arg}
                inspect.signature(called).bind(*given, **named)


BLOCKS = [block for page in PAGES for block in pages.blocks(page)]


def test_every_block_is_accounted_for():
    assert {block.page for block in BLOCKS} == set(PAGES)
    for block in BLOCKS:
        account(block)


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate --all",
        "taskd fly",
        "incident 1 was ended by recover-in-place; step 454 is committed on all ranks",
        "job.iterate(batches(), 3)",
        "taskd.shield(model=model)",
    ],
)
def test_a_block_that_nothing_covers_is_noticed(text):
    with pytest.raises((AssertionError, TypeError, AttributeError)):
        account(Block("a page", 1, "", text))


@pytest.mark.parametrize(
    "page",
    [page if page == "README.md" else pytest.param(page, marks=pytest.mark.long) for page in PAGES],
)
def test_the_commands_of(page, tmp_path):
    with Reader(page, tmp_path) as reader:
        reader.read()


@pytest.mark.long
@pytest.mark.parametrize(
    "command", sorted({c for b in BLOCKS for c in b.commands() if way(c) is Reader.demo})
)
def test_the_demo(command, tmp_path):
    done = Reader("README.md", tmp_path).bash(command, limit=280)
    assert done.returncode == 0, done.stdout + done.stderr
