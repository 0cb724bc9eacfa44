"""Slurm on the hosts of a test: munge, slurmctld on host 0, a slurmd on each."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import time
from pathlib import Path

from hosts import Hosts

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
STARTS = 30.0  # seconds until all nodes are idle; it takes 2

# - linuxproc and no task plugin: `ip netns exec` hides the cgroups
# - cred_expire: a requeued job waits until its credential has expired, by default for 120 s
CONF = """
ClusterName=taskd
SlurmctldHost=host-0
SlurmUser=root
AuthInfo=socket={0}/munge.socket,cred_expire=5
StateSaveLocation={0}/controller
SlurmdSpoolDir={0}/%n
SlurmctldPidFile={0}/slurmctld.pid
SlurmdPidFile={0}/%n/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=10
NodeName=host-[0-{1}] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# slurmd asks for a place of cgroups also where none are used
CGROUP = "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\nCgroupMountpoint={0}/cgroup\n"


def missing() -> list[str]:
    """The programs that are not installed (Debian: slurm-wlm and munge)."""
    return [name for name in NEEDED if shutil.which(name) is None]


class Slurm:
    """A context manager. Its daemons and jobs end with the hosts."""

    def __init__(self, hosts: Hosts, place: Path) -> None:
        self._hosts, self._place = hosts, place
        self._env = {**os.environ, "SLURM_CONF": str(place / "slurm.conf")}

    def __enter__(self) -> Slurm:
        place, count = self._place, self._hosts.count
        for name in ("controller", "cgroup", *(f"host-{h}" for h in range(count))):
            (place / name).mkdir(parents=True)
        (place / "slurm.conf").write_text(CONF.format(place, count - 1))
        (place / "cgroup.conf").write_text(CGROUP.format(place))
        key = place / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(32))
        names = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
        names |= {"seed-file": "munged.seed", "log-file": "munged.log"}
        options = [f"--{option}={place / name}" for option, name in names.items()]
        self._start(0, "munged", "--foreground", "--force", *options)
        self._start(0, "slurmctld", "-D", "-c")
        for host in range(count):
            self._start(host, "slurmd", "-D", "-N", f"host-{host}")
        end = time.monotonic() + STARTS
        while self.run("sinfo", "-h", "-N", "-t", "idle").count("host-") < count:
            assert time.monotonic() < end, (place / "output").read_text()[-5000:]
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        for host in range(self._hosts.count):
            self._hosts.signal(host, 9)

    def _start(self, host: int, *command: str) -> None:
        with open(self._place / "output", "ab") as output:
            subprocess.Popen(
                self._hosts.command(host, list(command)),
                env=self._env,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def run(self, *command: str, cwd: Path | None = None, **env: str) -> str:
        """What the command prints, on host 0."""
        done = subprocess.run(
            self._hosts.command(0, list(command)),
            env={**self._env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=cwd,
        )
        return done.stdout + done.stderr

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "-o", "show", "job", number)))
