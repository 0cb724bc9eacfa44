"""`python -m taskd.manager.spare`: a manager that is not needed yet. It has imported everything,
which takes most of a manager's start, and waits for its arguments: one line of JSON on stdin. It
ends when stdin does, with the agent that holds the other end."""

from __future__ import annotations

import json
import os
import sys

from taskd import process_title, start
from taskd.manager.__main__ import main

if __name__ == "__main__":
    process_title.hide_room()
    starter = os.pidfd_open(os.getppid())
    if not (line := sys.stdin.readline()):
        sys.exit(0)
    arguments = [*json.loads(line), "--starter", str(starter)]
    process_title.take(start.command("taskd.manager", *arguments))
    sys.exit(main(arguments))
