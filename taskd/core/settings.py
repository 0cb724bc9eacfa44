"""The coordinator's limits, and the shape of the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Limits of the coordinator, in seconds unless stated otherwise, each with its source."""

    nodes: int
    ranks_per_node: int
    ladder: tuple[str, ...] = ("retry", "recover-in-place", "exit")
    sub_healthy: str = "ignore"  # one of ladder.SUB_HEALTHY, at first
    switches: int = 0  # how often recovery has been switched; see JobState.repairs
    # until Interrupt is repeated: a cut takes 2-5 ms; one lost cut was once seen (docs/design.md)
    interrupt_again: float = 0.5
    # agents request more for ranks that are in user code and within their limit (RankBusy)
    interruption: float = 2.0
    # fault-retry-times: how often all ranks are restarted in place once the ladder is exhausted
    retries: int = 0
    # pod-rescheduling: a lost node is waited for, and all ranks are restarted with its next pod
    pods: bool = False
    # until a node that is lost is known to be: its agent's pings are missed for 1.2 s, for 3 s in
    # jobs of more than 1,000 nodes
    notice: float = 5.0
    # for the advisor to name a strategy: ClusterD waits 1 s for further faults, 10 s for the end of
    # a pod
    advice: float = 60.0
    # a signal to save the state for is named (TASKD_PREEMPTION_SIGNAL): it is also saved where the
    # advisor has nodes replaced
    saves: bool = False
    # how often the state is saved while the ranks train (TASKD_DUMP_EVERY): by one of these
    save_seconds: float | None = None
    save_steps: int | None = None
    advisor: str = "off"  # who decides if there is one: lead, follow; see core/advice.py
    # until a standby is available for a lost node (wait-reschedule-timeout, documented: 30 to 270)
    reschedule: float = 270.0
    # until a standby's ranks have run the user's script up to its first attempt; documented: 15
    # minutes
    prepare: float = 900.0
    # until all ranks are paused for the move of a node: a step may be long
    pause_all: float = 300.0
    nics: float = 600.0  # a switch of network cards: ClusterD's documented limit for its pause
    stress: float = 900.0  # stress tests of all ranks: ClusterD waits 15 minutes
    take_over: float = 30.0  # until it has the records of that node, some 10 kB a rank
    # until the device of a replacement has been reset (WaitDeviceResetTime, documented: 60 to 180)
    reset: float = 200.0
    rebuild: float = 20.0  # 16 ranks need 0.2 s
    restore: float = 120.0  # ~4 GB/s on a node
    dump: float = 1800.0  # MindIO's documented limit for a save: 30 minutes
    # the first step may be long; the watchdog handles a hang in it, and this is the backstop
    resume: float = 300.0
    # a framework's handler in a repair (TTP_NORMAL_ACTION_TIME_LIMIT, documented: 30 to 1800)
    handler: float = 180.0
    kill: float = 10.0  # the kernel needs 0.1-0.3 s per GiB to tear a process down
    # deaths of a rank's replacements in one incident before the strategy is given up
    replacements: int = 3
    # interruptions under one strategy before it is given up; two more for each replaced or evicted
    # rank
    rounds: int = 12
    # failed rebuilds or restores of a rank in one incident before its process is replaced
    failures: int = 2
    # in a repair, until the first progress probe; the interval then doubles. None: no probes
    look: float | None = 2.0
    looks: float = 8.0  # longest interval between two of these probes
    # that a rank may wait without using the CPU: in a collective which an interruption has cut, or
    # in its first step, while others are overdue
    idle: float = 20.0
    # that no rank may make progress, and none use a processor (TASKD_STANDSTILL); None: forever
    standstill: float | None = 600.0
    progress_probe: float = 1.0  # agents answer for silent ranks after 0.25 s
    between_calls: float = 0.2  # a rank that has moved in this time is not hung
    # for the script up to its first attempt, whatever it waits for there (TASKD_SET_UP_LIMIT): from
    # the first rank's protect() to the last one's; for a replacement, whose loader may draw all
    # batches of the pass again, from its start to its first committed step
    form: float = 600.0
    # until all living nodes have registered with a new manager; they find it in ~0.3 s, but a
    # standby that the previous one ordered to a lost node registers only once it has taken it over:
    # 3.3 s on a busy machine
    gather: float = 6.0

    @property
    def survives_nodes(self) -> bool:
        """Whether the job may outlive the loss of a node."""
        return bool({"recover", "elastic-training"} & set(self.ladder))

    @property
    def with_retry(self) -> tuple[str, ...]:
        """The ladder with `retry`, which lets all ranks train on as they were."""
        return ("retry", *(s for s in self.ladder if s != "retry"))

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks_per_node < 1:
            raise ValueError(
                f"nodes={self.nodes}, ranks_per_node={self.ranks_per_node}: both must be at least 1"
            )
