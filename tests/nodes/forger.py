"""forger.py JOB SECRET SECONDS: on a host of a job, say to whatever listens there that these are
records of its ranks, and ask for them.

Prints how many connections were let in, and what was acknowledged or handed out. A record that is
taken ends in a replacement; if anything of it were executed there, a file `forged` would lie in the
job's directory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time

import zmq

from taskd.core.job.snapshots import FINAL
from taskd.messages import between_agents, codec
from taskd.protocol import curve, keys
from taskd.records.sealed import Seal

LISTENS = "0A"  # in /proc/net/tcp


class Evil:
    def __reduce__(self):
        return os.system, ("touch forged",)


def listening() -> list[tuple[str, int]]:
    found = []
    with open("/proc/net/tcp") as table:
        for line in table.readlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            host = ".".join(str(b) for b in reversed(bytes.fromhex(address[:8])))
            if state == LISTENS:
                found.append(
                    (
                        "127.0.0.1" if host == "0.0.0.0" else host,
                        int(address.rpartition(":")[2], 16),
                    )
                )
    return found


def main(job: str, secret: str, seconds: float) -> None:
    ours, context = keys.derive(secret.encode()), zmq.Context()
    lines = []
    for host, port in listening():
        line = curve.client(context, host, ours, ours.identity(), 1 << 20)
        line.connect(curve.endpoint(host, port))
        lines.append(line)
    heard: dict[str, int] = {}
    step, end, payload = 0, time.monotonic() + seconds, pickle.dumps(Evil())
    while time.monotonic() < end:
        step += 1
        for line in lines:
            for node in (0, 1):
                with contextlib.suppress(zmq.Again):
                    line.send(codec.encode(between_agents.Fetch(job, node)), zmq.NOBLOCK)
                    for number in (step % 300, step, 2**60):
                        for rank in (2 * node, 2 * node + 1):
                            seal = Seal(ours.records, job, rank)
                            record = b"".join(seal.close(number, payload))
                            keep = between_agents.Keep(
                                job, node, rank, 10**9, number, FINAL, True, record
                            )
                            line.send(codec.encode(keep), zmq.NOBLOCK)
            while line.poll(0):
                answer = codec.FROM_KEEPER.decode(line.recv(), 1 << 30)
                name = type(answer).__name__ + (
                    " refused"
                    if answer == between_agents.Fetched(answer.node, between_agents.REFUSED)
                    else ""
                )
                heard[name] = heard.get(name, 0) + 1
        time.sleep(0.005)
    print(len(lines), *sorted(heard))
    context.destroy(linger=0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
