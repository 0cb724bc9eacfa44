"""What is in a page of the documents: its blocks, what each is, and the commands in it.

A block is told by its content, never by its place: a page may be rewritten without a change here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELLS = ("sh", "bash", "shell", "console")
FENCE = re.compile(r"^( *)```(\w*)\s*$")
ASSIGNED = r"""(?:\w+=(?:"[^"]*"|'[^']*'|\S)*\s+)*"""
# the beginning of a command of a shell; everything else that is no Python is output
PROGRAMS = re.compile(
    r"(?:taskd|pip3?|python3?|make|git|torchrun|export|source|unset|cd|mkdir|mv|cp|rm|cat|cmp|diff|ls"
    r"|echo|tail|head|grep|sleep|kill|openssl|sbatch|srun|scontrol|scancel|kubectl|curl"
    r"|promtool|jq)(?=\s|$)(?! is )"
)
DOES = ast.Call, ast.Assign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef
# in an output: of the system, of Python, of the example
NAMES = {"default", "WARNING", "INFO", "ERROR", "SIGKILL", "min", "Traceback"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str  # "" where the page does not say
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        first = without_variables(next(commands(self.text), ""))[1]
        if self.language in ("json", "mermaid", "yaml", "toml"):
            return self.language
        if self.text.startswith("#!"):
            return "program"
        if self.language in SHELLS or PROGRAMS.match(first):
            return "commands"
        if self.language == "python" or (not self.language and parses(self.text)):
            return "python"
        if re.match(r"\w+\s*\(.*\b(taskd_\w+)", self.text):
            return "promql"
        return "drawing" if "┌" in self.text else "output"

    @property
    def script(self) -> bool:
        """Whether it is a whole training script."""
        return self.kind == "python" and "import taskd" in self.text and "protect(" in self.text

    def commands(self) -> list[str]:
        text = self.text
        if self.language == "console":
            text = "\n".join(re.findall(r"^\$ (.*)$", text, re.MULTILINE))
        return list(commands(text)) if self.kind == "commands" else []

    def output(self) -> list[str]:
        """The lines that a program has printed."""
        if self.language == "console":
            return [line for line in self.text.splitlines() if not line.startswith("$ ")]
        return self.text.splitlines() if self.kind == "output" else []


def parses(text: str) -> bool:
    """Whether it is Python that does something: a word with an option parses, too."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, DOES) for node in ast.walk(tree))


def commands(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.strip().startswith("#"):
            yield line.strip()


def without_variables(command: str) -> tuple[str, str]:
    """What is assigned in front of a command, and the command."""
    assigned = re.match(ASSIGNED, command)
    assert assigned is not None
    return assigned[0], command[assigned.end() :]


@cache
def blocks(page: str) -> list[Block]:
    """Fenced ones, and indented ones after an empty line outside of a list."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    number, listed = 0, False
    while number < len(lines):
        line, begins = lines[number], number + 1
        fence = FENCE.match(line)
        if fence:
            taken = []
            while (number := number + 1) < len(lines) and lines[number].strip() != "```":
                taken.append(lines[number].removeprefix(fence[1]))
            number += 1
            found.append(Block(page, begins, fence[2], "\n".join(taken)))
        elif line.startswith("    ") and not listed and not lines[number - 1].strip():
            taken = []
            while number < len(lines) and (lines[number][:4] == "    " or not lines[number]):
                taken.append(lines[number][4:])
                number += 1
            found.append(Block(page, begins, "", "\n".join(taken).rstrip()))
        else:
            if line.strip():
                listed = bool(re.match(r"([-*]|\d+\.) ", line)) or (listed and line[0] == " ")
            number += 1
    return found


# -- what taskd says -------------------------------------------------------------------------------

WORD = re.compile(r"(?<![\w/.-])[A-Za-z][A-Za-z-]+(?![\w/.-]\w)")


def unsaid(line: str) -> list[str]:
    """The words of an output that taskd does not say: those in no text of its sources, and a
    sentence of which no text there has at least half."""
    covered = {
        at
        for text in sentences()
        if all(part in line for part in text)
        for match in re.finditer(".*".join(f"({re.escape(part)})" for part in text), line)
        for group in range(1, len(text) + 1)
        for at in range(*match.span(group))
    }
    wrong = [w for w in WORD.findall(line) if w not in vocabulary()]
    for part in re.finditer(r"[^\s\d]+(?: [^\s\d]+)*", line):
        words = list(WORD.finditer(part[0]))
        if sum(word[0].islower() for word in words) >= 5:
            found = [part.start() + word.start() in covered for word in words]
            wrong += [part[0]] if sum(found) * 2 < len(found) else []
    return wrong


@cache
def texts() -> list[list[str]]:
    """The strings in taskd's sources but docstrings: what stands between their gaps."""
    found = []
    for path in (ROOT / "taskd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr):
                node.value = ast.Constant(None)
            elif isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", "") for part in node.values]
                found.append([part if isinstance(part, str) else "" for part in parts])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.split(r"%[.\d]*[a-z]|\{\w*\}", node.value))
    return found


@cache
def sentences() -> list[list[str]]:
    stripped = ([part.strip() for part in text if part.strip()] for text in texts())
    return [text for text in stripped if len(WORD.findall(" ".join(text))) >= 3]


@cache
def vocabulary() -> set[str]:
    said = {word for text in texts() for part in text for word in WORD.findall(part)}
    return said | NAMES


def json_lines(text: str) -> list[object]:
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]
