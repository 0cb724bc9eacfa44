"""MindSpore's pod rescheduling (RSC): the pod of a node is replaced, the other pods stay, and all
workers are restarted. Real: msrun, MindSpore, its collectives; hosts are network namespaces."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from launching import HERE, LIMIT, MANAGER, free_port

sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
import hosts as lab

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is None,
    reason="mindspore is not installed: make test-mindspore runs these",
)
NODES, STEPS = 3, 200


class Pods:
    """Nodes of one worker each; what their launchers print is in output-HOST."""

    def __init__(self, machines: lab.Hosts, folder: Path) -> None:
        self.machines, self.folder = machines, folder
        self.port, self.launchers = free_port(), {}
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("TASKD_", "MS_", "RANK"))}
        self.env = {
            **ours,
            "OMP_NUM_THREADS": "1",
            "TASKD_PORT": str(free_port()),
            "TASKD_SECRET": "tests",
            "TASKD_PROCESS_ENABLE": "on",
            "TASKD_LOG_PATH": str(folder / "log"),
            "MINDX_TASK_ID": "pods",
            "MS_ENABLE_TFT": "{RSC:1}",
            "MS_CPU_COMM_OP_TIMEOUT": "15",
            "MS_NODE_TIMEOUT": "10",
            "GLOO_SOCKET_IFNAME": "eth0",
            "GLOG_v": "3",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        (folder / "manager.py").write_text(MANAGER.replace('"node_nums": 1', '"node_nums": 3'))
        self.run(0, "manager", [sys.executable, "manager.py", "1"])
        for node in range(NODES):
            self.launch(node, node)

    def run(self, host: int, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"output-{name}", "ab") as output:
            return subprocess.Popen(
                self.machines.command(host, command),
                cwd=self.folder,
                env={**self.env, "POD_IP": self.machines.address(host)},
                stdout=output,
                stderr=output,
            )

    def launch(self, host: int, node: int) -> None:
        command = ["msrun", f"--worker_num={NODES}", "--local_worker_num=1"]
        command += [f"--master_addr={self.machines.address(0)}", f"--master_port={self.port}"]
        command += [f"--node_rank={node}", f"--log_dir=log-{host}", "--join=True"]
        command += [str(HERE / "scripts" / "collective.py"), str(STEPS)]
        self.launchers[host] = self.run(host, str(host), command)

    def workers(self) -> list[tuple[int, int]]:
        """Of each rank the process that has done the last step, and that step."""
        found = []
        for rank in range(NODES):
            path = self.folder / f"steps.{rank}"
            rows = path.read_text().splitlines() if path.exists() else []
            pid, step = rows[-1].split()[:2] if rows else (0, -1)
            found.append((int(pid), int(step)))
        return found

    def reach(self, step: int, old: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Wait until processes other than `old` have done that step on all ranks; their pids."""
        due = time.monotonic() + LIMIT
        while not all(reached >= step and pid not in old for pid, reached in self.workers()):
            assert time.monotonic() < due, self.output
            time.sleep(0.02)
        return tuple(pid for pid, _ in self.workers())

    @property
    def output(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted([*self.folder.glob("output-*"), *self.folder.glob("log/*.log")])
        )


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_pod_is_replaced(tmp_path):
    if not lab.possible():
        pytest.skip("network namespaces cannot be made here (root, ip)")
    with lab.Hosts(4) as machines:
        job = Pods(machines, tmp_path)
        before = job.reach(5)
        machines.signal(2, signal.SIGKILL)
        log = tmp_path / "log" / "manager.log"
        due = time.monotonic() + LIMIT
        while "once a replacement pod has come" not in log.read_text():
            assert time.monotonic() < due, job.output
            time.sleep(0.02)
        job.launch(3, 2)
        after = job.reach(STEPS - 1, before)
        assert not set(after) & set(before)
        statuses = {host: job.launchers[host].wait(LIMIT) for host in (0, 1, 3)}
        assert statuses == {0: 0, 1: 0, 3: 0}, job.output
