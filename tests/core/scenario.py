"""Plays scenario texts: events of a job, line by line, and below each line the coordinator's
commands.

A line at the left margin is an input; the lines indented below it are the expected output; `#`
begins a comment. Inputs:

    with notes                                               notes are output too
    job 4 ranks on 2 nodes [ladder=retry,exit rounds=3]      a coordinator; any field of Settings may be given;
                                                             without look=2 there are no progress probes
                                                             in a repair
    form 4 ranks on 2 nodes [...]                            the same, run up to the first step
    at 0.350                                                 time passes until then, with ticks when due
    wait                                                     time passes until the next tick is due
    show                                                     the coordinator's state
    the manager is replaced by a new one                     the new one knows nothing
    node 1 joins: ranks=2-3 epoch=1 generation=2 ...         any field of AgentJoined; left=updated:5 for each of `dead` and `new`;
                                                             keeps=0@3@26/2@3@48: since generation 3;
                                                             faults=1/3: one of three that it may have;
                                                             resumed=2 stand_ins=3=0/2=1: since generation 2
                                                             rank 0 stands in for rank 3
    node 1 leaves | node 1 leaves with an error: text | node 1 leaves, stopped
    node 1 is lost: text
    standby S waits [ranks=2]                                default: as many as a node has; prepares=1 epoch=1
                                                             incarnations=1,1 ready=1: for node 1, by an
                                                             earlier manager's order
    standby S is lost: text
    recovery is paused | recovery is on                      request A
    node 1 is sub-healthy: text                              request A
    clusterd connects | clusterd is lost
    clusterd: KIND ACTION [uuid=u1 ranks=1:0,2:1 nodes=1]    rank 1 with fault type 0; ACTION with _ for blanks, or -
    clusterd: changeStrategy recover [uuid=u1 extra=recover-in-place]
    the device of rank 2 is RestartNPU: text [unusable=1]    request A; any level; unusable: it gets no further process;
                                                             resetting=1: none before it has been reset
    the device of rank 2 may be used
    standby S is ready to be node 1 | standby S cannot be node 1: text
    agent-1, which has had node 1, is lost: text
    standby S has taken node 1 @ POSITION / POSITION         the ranks' records; one for all; `nothing`
    node 0 has taken the records of ranks 2-3 @ POSITION / POSITION      for ranks that stand in for them
    node 0 could not take the records of ranks 2-3: text
    WHO joined | ready | ended
    WHO ended before 5 @ POSITION                            step 5 is the next that it would have begun
    WHO died: cause @ POSITION                               without @: it left no record
    WHO died: cause (ValueError: text)                       an exception has ended it
    WHO raised in step 5: text
    WHO lost a collective in step 5: text
    WHO has a memory fault in step 5: text [page=0x1000]     or `other`, `network`, `type 7`; default: no page;
                                                         load=4: all have to load that checkpoint
    WHO stalled for 30 s in step 5 [stopped=1]               stopped: by a signal, all that time
    WHO is at 5.3 for 30 s, overdue, silent, in all_reduce   answers the last progress probe: step 5, 3 collectives begun;
                                                             each part but the first is optional;
                                                             `waiting`: interrupted, paused or
                                                             finished; `stopped`: by a signal
    WHO interrupted @ POSITION | WHO interrupted @ POSITION; unfit: text
                                                             idle=2.7: in the middle of a step, with no progress
                                                             for so many seconds; 0: at work
    WHO is busy for 30 s
    WHO holds POSITION | WHO holds POSITION, without room for a copy
    WHO has recorded the state | WHO has copied the state | WHO has saved the state
    WHO could not save the state: text                       beside training
    node 1 has saved its records | node 1 could not save its records: text
    node 1 has saved its records of ranks 2-3            default: of its ranks, and of lost nodes
    node 1 has sealed the dump at PATH | node 1 could not seal the dump: text
    WHO rebuilt | WHO restored ab12 | WHO failed: reason
    WHO committed 5 | WHO finished before 10
    request A: pause | request A: continue | request A: save | request A: save and end
    node 1 has 30 s to leave: SIGTERM to its launcher
    rank 0 would save in 5 s
    request A: test ranks 0,2 by aic,p2p | request A: switch ranks 0=backup,1=main
    clusterd: tests 0=aic,1=aic+p2p | clusterd: switches 0=backup,1=main
    WHO has done task 1: well | WHO has done task 1: aic 2 hot, p2p 0      test, code, text
    node 1: no rank has begun 6
    WHO paused before 6 | WHO had begun 6

WHO is `rank 1`, `ranks 0,2-3`, `everybody`, `survivors`, `replacements` or `the rest` (the ranks
that the phase waits for). A POSITION is `computing 5` (the step has begun, nothing has changed),
`updated 5` (after the optimizer, before the end of the attempt), `committed 5` (between steps 5 and
6), `paused 6` (stopped before step 6), each with changes such as `stripes=none clean=5 drifted=6`.
A line may end in `[incarnation=0 interruption=1 generation=2 call=1 cpu=0.5]`; the defaults are the
current numbers and no CPU time.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from taskd.core import events as e
from taskd.messages import from_agent, from_operator, from_rank
from tests.core import scenario_tasks as tasks
from tests.core.scenario_play import Play, ScenarioError, event, fault, origin, present, rank_event
from tests.core.scenario_words import pairs

INDENT = "  "


def rewrite(text: str) -> str:
    """Return the scenario with the coordinator's current output."""
    play, out = Play(), []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(INDENT):
            continue
        out.append(line)
        if not line.strip() or line.startswith("#"):
            continue
        try:
            out += [INDENT + said for said in take(play, line)]
        except ScenarioError as error:
            raise ScenarioError(f"line {number}: {error}") from None
    return "\n".join(out) + "\n"


def take(play: Play, line: str) -> list[str]:
    body, options = line.strip(), {}
    if found := re.fullmatch(r"(.*?)\s*\[([^\[\]]*)\]", body):
        body, options = found[1], pairs(found[2])
    for pattern, method in INPUTS:
        if match := re.fullmatch(pattern, body):
            try:
                out: list[str] = method(play, options, **match.groupdict())
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                if error.__traceback__ is not None and "taskd/core" in origin(error):
                    raise
                raise ScenarioError(f"{line!r}: {type(error).__name__}: {error}") from None
            return out
    raise ScenarioError(f"not understood: {line!r}")


WHO = r"(?P<who>everybody|survivors|replacements|the rest|ranks? [\d,-]+) "
NODE = r"node (?P<node>\d+) "

INPUTS: list[tuple[str, Callable[..., list[str]]]] = [
    (r"with notes", Play.with_notes),
    (r"job (?P<n>\d+) ranks on (?P<nodes>\d+) nodes?", Play.job),
    (r"form (?P<n>\d+) ranks on (?P<nodes>\d+) nodes?", Play.form),
    (r"the manager is replaced by a new one", Play.new_manager),
    (r"at (?P<time>[\d.]+)", Play.at),
    (r"wait", Play.wait),
    (r"show", Play.show),
    (r"node (?P<node>\d+) joins(?:: (?P<rest>.*))?", Play.node_joins),
    (
        r"node (?P<node>\d+) leaves(?P<error> with an error(?:: (?P<why>.*))?)?(?P<stopped>, stopped)?",
        Play.node_leaves,
    ),
    (NODE + r"is lost: (?P<why>.*)", event(e.AgentLost)),
    (r"standby (?P<name>[\w-]+) waits", Play.standby_waits),
    (r"standby (?P<agent>\w+) is lost: (?P<why>.*)", event(e.StandbyLost)),
    (NODE + r"is sub-healthy: (?P<why>.*)", event(from_operator.NodeSubHealthy, request="A")),
    (r"recovery is (?P<on>paused|on)", event(from_operator.RecoverySwitched, request="A")),
    (r"clusterd (?P<on>connects|is lost)", event(e.AdvisorConnected)),
    (r"clusterd: (?P<kind>tests|switches) (?P<what>\S+)", tasks.of_clusterd),
    (r"clusterd: (?P<kind>[\w-]+) (?P<what>[\w-]+)", Play.cluster_signal),
    (r"the device of rank (?P<number>\d+) is (?P<level>\w+): (?P<why>.*)", Play.device),
    (r"the device of rank (?P<number>\d+) may be used", Play.device_well),
    (r"standby (?P<agent>\w+) is ready to be node (?P<node>\d+)", event(from_agent.NodePrepared)),
    (
        r"standby (?P<agent>\w+) cannot be node (?P<node>\d+): (?P<why>.*)",
        event(from_agent.PreparationFailed),
    ),
    (
        r"(?P<agent>[\w-]+), which has had node (?P<node>\d+), is lost: (?P<why>.*)",
        event(e.FormerLost),
    ),
    (r"standby (?P<name>[\w-]+) has taken node (?P<node>\d+) @ (?P<at>.*)", Play.node_taken),
    (
        NODE + r"has taken the records of ranks? (?P<away>[\d,-]+) @ (?P<at>.*)",
        Play.records_taken,
    ),
    (
        NODE + r"could not take the records of ranks? (?P<away>[\d,-]+): (?P<why>.*)",
        Play.records_not_taken,
    ),
    (NODE + r"has saved its records(?: of ranks? (?P<who>[\d,-]+))?", Play.records_saved),
    (
        NODE + r"could not save its records: (?P<why>.*)",
        event(from_agent.RecordsSaved, files=(), ranks=()),
    ),
    (NODE + r"has sealed the dump at (?P<path>\S+)", event(from_agent.Sealed, why="")),
    (NODE + r"could not seal the dump: (?P<why>.*)", event(from_agent.Sealed, path="")),
    (r"node (?P<node>\d+): no rank has begun (?P<step>\d+)", event(from_agent.StepsBegun)),
    (r"request (?P<request>\w+): pause", event(from_operator.PauseRequested)),
    (r"request (?P<request>\w+): continue", event(from_operator.ContinueRequested)),
    (
        r"request (?P<request>\w+): save(?P<end> and end)?",
        event(from_operator.SaveRequested, end=False),
    ),
    (NODE + r"has (?P<grace>[\d.]+) s to leave: (?P<cause>.*)", event(from_agent.AskedToLeave)),
    (WHO + r"would save in (?P<seconds>[\d.]+) s", event(from_rank.SaveEstimate)),
    (r"request (?P<name>\w+): test ranks (?P<who>\S+) by (?P<what>\S+)", tasks.devices_tested),
    (r"request (?P<name>\w+): switch ranks (?P<what>\S+)", tasks.nics_switched),
    (WHO + r"(?:has|have) done task (?P<number>\d+): (?P<what>.*)", rank_event(tasks.done)),
    (WHO + "joined", event(from_rank.RankJoined)),
    (WHO + "ready", event(from_rank.RankReady)),
    (
        WHO + r"ended(?: before (?P<step>\d+)(?: @ (?P<left>.*))?)?",
        event(from_agent.RankEnded, step=-1, position=None),
    ),
    (
        WHO + r"left its loop and ended before (?P<step>\d+) @ (?P<left>.*)",
        event(from_agent.RankEnded, left_loop=True),
    ),
    (
        WHO + r"died: (?P<cause>[^@]*?)(?: \((?P<raised>\w+: .*)\))?(?: @ (?P<left>.*))?",
        event(from_agent.RankDied),
    ),
    (WHO + r"raised in step (?P<step>\d+): (?P<text>.*)", event(from_rank.RankRaised)),
    (
        WHO + r"cannot be protected from step (?P<step>\d+) on: (?P<reason>.*)",
        event(from_rank.NotProtected),
    ),
    (
        WHO + r"lost a collective in step (?P<step>\d+): (?P<text>.*)",
        event(from_rank.CollectiveFailed),
    ),
    (
        WHO + r"(?:has|have) an? (?P<kind>memory|other|network|type \d+) fault in step (?P<s>\d+):"
        r" (?P<text>.*)",
        rank_event(fault),
    ),
    (
        WHO + r"stalled for (?P<seconds>[\d.]+) s in step (?P<step>\d+)",
        event(from_agent.RankStalled),
    ),
    (
        WHO + r"(?:is|are) at (?P<at>[\d.]+)(?: for (?P<s>[\d.]+) s)?(?P<flags>(?:, \w+)*)(?:, in"
        r" (?P<where>.*))?",
        rank_event(present),
    ),
    (
        WHO + r"interrupted @ (?P<position>[^;]*)(?:; unfit: (?P<unfit>.*))?",
        event(from_rank.RankInterrupted),
    ),
    (WHO + r"(?:is|are) busy for (?P<allowance>[\d.]+) s", event(from_agent.RankBusy)),
    (
        WHO + r"holds? (?P<position>[^,]*)(?P<copies>, without room for a copy)?",
        event(from_rank.RankPosition, copies=True),
    ),
    (WHO + "(?:has|have) (?:recorded|copied) the state", event(from_rank.StateSaved, files=())),
    (WHO + r"could not save the state: (?P<why>.*)", event(from_rank.StateSaved, files=())),
    (
        WHO + "(?:has|have) saved the state",
        event(from_rank.StateSaved, files=(("state/x", 5, "cd"),)),
    ),
    (WHO + "rebuilt", event(from_rank.RankRebuilt)),
    (WHO + r"restored (?P<digest>\w+)", event(from_rank.RankRestored)),
    (WHO + r"failed: (?P<reason>.*)", event(from_rank.RankFailed)),
    (WHO + r"committed (?P<step>\d+)", event(from_rank.StepCommitted)),
    (WHO + r"finished before (?P<step>\d+)", event(from_rank.RankFinished)),
    (WHO + r"paused before (?P<step>\d+)", event(from_rank.RankPaused)),
    (WHO + r"had begun (?P<step>\d+)", event(from_rank.RankPassed)),
]
