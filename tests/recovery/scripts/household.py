"""A job whose ranks start other processes in their set-up, each rank of its own.

household.py OUT STEPS KINDS

KINDS, with commas between them: "plain" a program in the rank's session, "session" one in a session
of its own, "daemon" a fork without exec in a session of its own, "manager" a multiprocessing
Manager, "server" a program that serves the rank's port (PORT + rank) and is asked once a step,
"free" a program without the rank's marks in a session of its own. The rank writes their pids to
OUT/KIND-RANK-INCARNATION. It trains until OUT/hurry is there if that is asked of it by "slow".
"""

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]
SERVE = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("serves", flush=True)
    while True:
        server.accept()[0].close()
"""
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps, kinds = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
port = int(os.environ.get("PORT", "0")) + rank


def note(kind: str, pid: int) -> None:
    (out / f"{kind}-{rank}-{os.environ.get('TASKD_INCARNATION', '0')}").write_text(str(pid))


if "plain" in kinds:
    note("plain", subprocess.Popen(SLEEP).pid)
if "session" in kinds:
    note("session", subprocess.Popen(SLEEP, start_new_session=True).pid)
if "free" in kinds:
    clean = {k: v for k, v in os.environ.items() if k != "TASKD_SHARED_DIR"}
    note("free", subprocess.Popen(SLEEP, start_new_session=True, env=clean).pid)
if "daemon" in kinds:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(3600)
        os._exit(0)
    note("daemon", pid)
if "manager" in kinds:
    manager = multiprocessing.get_context("fork").Manager()
    shared = manager.dict(pid=0)
    note("manager", manager._process.pid)
if "server" in kinds:
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(port)], stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"serves\n"
    note("server", server.pid)

torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
torch.manual_seed(100 + rank)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            if "server" in kinds:
                socket.create_connection(("127.0.0.1", port)).close()
            loss = model(torch.randn(8, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.protected and not (out / "hurry").exists():
                time.sleep(0.05)
        if attempt.committed:
            log.step(step, loss)
    log.final(net, optimizer)
record.leave(job)
