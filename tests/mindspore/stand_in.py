"""A stand-in for msrun, for tests without MindSpore: the same registration, and functions that do
to real processes what msrun's do (read off mindspore 2.10.0; test_contract.py compares names).

    python stand_in.py [--plugin] [--without OPERATOR] WORKERS SCRIPT [ARGUMENTS...]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

# ends when all workers have, or have finished with it (the file `leave`), and with its launcher:
# msrun's own would stay
SCHEDULER = """
import os, pathlib, sys, time
launcher = os.getppid()
logs = [pathlib.Path(f"worker_{rank}.log") for rank in range(int(sys.argv[1]))]
while os.getppid() == launcher and not all(
    log.exists() and "done" in log.read_text() for log in logs
):
    time.sleep(0.05)
    if os.path.exists("leave"):
        os.unlink("leave")
        break
"""


class Manager:
    def __init__(self, workers: int, command: list[str]) -> None:
        self.count, self.command = workers, command
        self.master_addr, self.node_rank = "127.0.0.1", -1
        self.msn_process: subprocess.Popen | None = None
        self.processes: list[subprocess.Popen] = []
        self.of: dict[int, subprocess.Popen] = {}

    def start_scheduler(self) -> None:
        os.environ["MS_ROLE"] = "MS_SCHED"
        command = [sys.executable, "-c", SCHEDULER, str(self.count)]
        self.msn_process = subprocess.Popen(command)

    def kill_workers(self, pids: list[int]) -> int:
        for process in self.processes if -1 in pids else []:
            if process.poll() is None:
                os.killpg(os.getpgid(process.pid), signal.SIGKILL)
        self.processes = [] if -1 in pids else self.processes
        return 0

    def start_all_workers(self) -> int:
        return self.start_worker_list(list(range(self.count)))

    def start_worker_list(self, ranks: list[int]) -> int:
        for rank in ranks:
            os.environ.update(RANK_ID=str(rank), MS_ROLE="MS_WORKER", MS_WORKER_NUM=str(self.count))
            with open(f"worker_{rank}.log", "w", encoding="utf-8") as log:
                process = subprocess.Popen(
                    self.command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=os.setsid
                )
            self.processes.append(process)
            self.of[rank] = process
        return 0

    def monitor_rank_status(self, ranks: list[int]) -> dict[int, dict[str, int | None]]:
        found: dict[int, dict[str, int | None]] = {}
        for rank in range(self.count) if -1 in ranks else ranks:
            if rank not in self.of:
                found[rank] = {"pid": None, "status": 200, "global_rank": rank}
                continue
            process = self.of[rank]
            status = process.poll()
            found[rank] = {
                "pid": process.pid,
                "status": status if status in (None, 0) else 300,
                "global_rank": rank,
                "local_rank": rank,
                "node_id": self.node_rank,
            }
        return found


def main() -> None:
    arguments = sys.argv[1:]
    plugin = arguments[0] == "--plugin" and bool(arguments.pop(0))
    without = arguments.pop(1) if arguments[0] == "--without" else ""
    if without:
        arguments.pop(0)
    manager = Manager(int(arguments[0]), [sys.executable, *arguments[1:]])
    functions = {
        "KILL_WORKER": manager.kill_workers,
        "START_ALL_WORKER": manager.start_all_workers,
        "START_WORKER_LIST": manager.start_worker_list,
        "MONITOR": manager.monitor_rank_status,
    }
    functions.pop(without, None)
    if plugin:
        from taskd.python.framework.agent.ms_mgr.msrun_plugin import MSRunPlugin

        launcher = MSRunPlugin()
        for name, function in functions.items():
            launcher.register_callbacks(name, function)
        start = launcher.start
    else:
        from taskd.api.taskd_agent_api import init_taskd_agent, register_func, start_taskd_agent

        if not init_taskd_agent({"Framework": "MindSpore"}):
            raise SystemExit("msrun keeps its workers")
        for name, function in functions.items():
            register_func(name, function)
        start = start_taskd_agent
    manager.start_scheduler()
    print("scheduler", manager.msn_process.pid, flush=True)
    start()


main()
