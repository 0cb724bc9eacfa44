"""`python -m taskd.manager --nodes N --ranks-per-node M`: the manager as its own process. Prints
nothing on stdout.

Exit status: 0 the job ended well, 1 it failed, 2 bad arguments or settings, 3 the port is in use, 4
another manager is in charge, the launcher that started this one ended before any agent joined, or
no launcher came (TASKD_LAUNCHER_WAIT); 128 + signal when one ended it while the job continued.
While the launcher that started it lives, only that one's LEAVE does (start.py).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from taskd import logs, settings, start
from taskd.manager import config
from taskd.manager.endpoint import PortInUse
from taskd.manager.start import InCharge, make
from taskd.protocol.keys import BadSecret

SIGNALS = (
    start.LEAVE,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    wanted = {
        "node_nums": arguments.nodes,
        "proc_per_node": arguments.ranks_per_node,
    }
    log = logs.setup("manager")
    try:
        parsed = config.parse(wanted, under_way=arguments.successor is not None)
        for warning in parsed.warnings:
            log.warning("%s", warning)
        server = make(
            parsed,
            os.environ,
            arguments.bind,
            arguments.port,
            arguments.successor is not None,
            arguments.starter,
            arguments.successor or (),
        )
        server.open()
    except InCharge as error:
        return _refuse(log, 4, str(error))
    except PortInUse as error:
        if arguments.ready >= 0:  # the launcher looks who has it
            log.info("%s", error)
            return 3
        return _refuse(log, 3, str(error))
    except config.BadConfig as error:
        return _refuse(log, 2, *error.errors)
    except (settings.BadSetting, BadSecret) as error:
        return _refuse(log, 2, str(error))
    got: list[int] = []

    def leave(number: int, _frame: object) -> None:
        # what is sent to a whole job, as scancel does, is for its launchers: they say how it ends
        if server.starter >= 0 and number != start.LEAVE:
            return
        got.append(number)
        by = "LEAVE" if number == start.LEAVE else signal.Signals(number).name
        server.stop(f"{by} was received; the job continues")

    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, leave)
    if arguments.ready >= 0:
        with contextlib.suppress(BrokenPipeError):  # the launcher has ended, see --starter
            os.write(arguments.ready, b"1")
        os.close(arguments.ready)
    outcome = server.run()
    if outcome.ok is None:
        return 128 + got[0] if got else 4
    return 0 if outcome.ok else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    about = "Decides what to do about the faults of one training job."
    parser = argparse.ArgumentParser(prog="python -m taskd.manager", description=about)
    parser.add_argument(
        "--nodes", type=int, required=True, help=f"nodes of the job, 1 to {config.MAX_NODES}"
    )
    ranks = f"training processes on each node, 1 to {config.MAX_RANKS_PER_NODE}"
    parser.add_argument("--ranks-per-node", type=int, required=True, help=ranks)
    parser.add_argument("--port", type=_port, help=f"default: TASKD_PORT, else {settings.PORT}")
    successor = (
        "take over a job that had another manager: wait until a majority of its agents acknowledges"
        " this one; HOST: where another one may be started for the same loss"
    )
    parser.add_argument("--successor", nargs="*", metavar="HOST", help=successor)
    starter = (
        "pidfd of the launcher that starts it: if that ends before an agent has joined, this"
        " manager ends too"
    )
    parser.add_argument("--starter", type=int, default=-1, help=starter)
    parser.add_argument(
        "--ready",
        type=int,
        default=-1,
        help="descriptor to which it writes a byte once it listens",
    )
    parser.add_argument("--bind", help="IP address to listen on; default: POD_IP, else 127.0.0.1")
    return parser.parse_args(argv)


def _port(text: str) -> int:
    try:
        return settings.port({"TASKD_PORT": text})
    except settings.BadSetting as error:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is {error.allowed}") from None


def _refuse(log: logging.Logger, status: int, *lines: str) -> int:
    """Log why no manager starts, and print it to stderr if the log does not go there."""
    printed = any(
        type(h) is logging.StreamHandler and h.level <= logging.ERROR for h in log.handlers
    )
    for line in lines:
        log.error("%s", line)
        if not printed:
            print(line, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
