"""Writes docs/settings.md from the tables in taskd/settings; with --check, fails when the file is
not what would be written.

    python scripts/settings_docs.py [--check]
"""

from __future__ import annotations

import sys

import generated

TARGET = generated.ROOT / "docs" / "settings.md"
sys.path.insert(0, str(generated.ROOT))  # this tree's taskd, installed or not

from taskd import settings  # noqa: E402

HEAD = """# Settings

Written by `scripts/settings_docs.py` from the tables in `taskd/settings/`. Change those, not this.

What is not set, or set to nothing, has its default. A value that cannot be used is refused with its
name, the value, what is allowed and what to do. `taskd env --list` shows the same (`--json` for
programs), `taskd env --check` looks at the environment that it is called in, and
`taskd env --framework pytorch --strategy retry,recover` prints what Ascend Operator would inject.
"""


def render() -> str:
    parts = [HEAD.rstrip(), *(_section(s) for s in settings.SECTIONS), _injected(), _combinations()]
    return "\n\n".join(parts) + "\n"


def _section(section: settings.Section) -> str:
    elsewhere = any(p.where is not settings.Where.ENVIRONMENT for p in section.parameters)
    needed = any(p.needed for p in section.parameters)
    rows = []
    for p in section.parameters:
        cells = [f"`{p.name}`", *([p.where.value] if elsewhere else []), p.kind.allowed, p.shown]
        rows.append([*cells, *([", ".join(p.needed) or "-"] if needed else []), p.meaning])
    heads = [
        "Name",
        *(["Where"] if elsewhere else []),
        "Values",
        "Default",
        *(["Needed for"] if needed else []),
        "Meaning",
    ]
    return "\n\n".join(
        part for part in (f"## {section.title}", section.about, _table(heads, rows)) if part
    )


def _injected() -> str:
    rows = []
    for framework, columns in settings.TABLE.items():
        for column in settings.COLUMNS:
            variables = columns.get(column)
            shown = (
                "not possible"
                if variables is None
                else ", ".join(f"`{n}={v}`" for n, v in variables.items()) or "-"
            )
            rows.append([framework, f"`{column}`", shown])
    about = (
        "Several strategies together have the variables of all, lists joined. `taskd env` adds"
        " `TASKD_RECOVER_STRATEGY` where that would lose one of them: `exit` alone, and `recover`"
        " beside `recover-in-place`."
    )
    return "\n\n".join(
        (
            "## The environment of a strategy",
            about,
            _table(["Framework", "Strategy", "Variables"], rows),
        )
    )


def _combinations() -> str:
    refused = "\n".join(f"- {rule.says}: {rule.remedy}" for rule in settings.REFUSED)
    notices = "\n".join(f"- {notice.when}: {notice.says}" for notice in settings.NOTICES)
    about = (
        "By the manager, the agent and `taskd run`, as far as the environment tells; all of it by"
        " `taskd env --check`."
    )
    return (
        f"## What is refused\n\n{about}\n\n{refused}\n\n## What is accepted with a"
        f" notice\n\n{notices}"
    )


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        f"| {' | '.join(cells)} |" if cells[0] != "---" else f"|{'|'.join(cells)}|"
        for cells in lines
    )


if __name__ == "__main__":
    sys.exit(generated.main(sys.argv[1:], __doc__, TARGET, render()))
