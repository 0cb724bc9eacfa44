"""ClusterD's signals as events of `core`, and reports of `core` as ClusterD's requests. Invalid
signals are refused, with the reason."""

from __future__ import annotations

from typing import Any

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.job import job_name
from taskd.messages.from_rank import FAULTS
from taskd.messages.to_rank import RANGES

# Names and numbers of a signal; one of 100,000 ranks has 1 MB.
LONGEST_NAME = 256
MOST = 200_000
DAY = 86_400
MOST_TESTS = 8  # of one device


class BadSignal(ValueError):
    """The signal is not for this job, or makes no sense; str() is the reason."""


def event_of(signal: Any, job: str) -> e.AdvisorSignal:
    """Translate a ProcessManageSignal. Raises BadSignal."""
    if signal.jobId and signal.jobId != job:
        raise _of_another(signal.jobId, job)
    names = (signal.uuid, signal.signalType, signal.changeStrategy, signal.extraParams)
    longest = max(map(len, (*names, *signal.actions)))
    if longest > LONGEST_NAME:
        raise BadSignal(f"a name has {longest} characters; allowed are {LONGEST_NAME}")
    many = max(len(signal.faultRanks), len(signal.nodeRankIds), len(signal.actions))
    if many > MOST:
        raise BadSignal(f"it lists {many} ranks, nodes or actions; allowed are {MOST}")
    return e.AdvisorSignal(
        signal.uuid,
        signal.signalType,
        tuple(signal.actions),
        tuple((_number("rank", f.rankId, MOST), _fault(f.faultType)) for f in signal.faultRanks),
        signal.changeStrategy,
        signal.extraParams,
        tuple(_number("node rank", n, MOST) for n in signal.nodeRankIds),
        float(min(max(signal.timeout, 0), DAY)),
    )


def task_of(message: Any, job: str) -> e.AdvisorTask | e.ProfileSwitched:
    """Translate a SwitchRankList, StressTestRankParams or DataStatusRes. Raises BadSignal."""
    if message.DESCRIPTOR.name == "DataStatusRes":
        return _profile(message)
    if message.jobId and message.jobId != job:
        raise _of_another(message.jobId, job)
    if message.DESCRIPTOR.name == "SwitchRankList":
        if not 0 < len(message.rankID) == len(message.op) <= MOST:
            many = f"{len(message.rankID)} ranks and {len(message.op)} network cards"
            raise BadSignal(f"it lists {many}; allowed are 1 to {MOST}, and as many of both")
        ranks = (_number("rank", rank, MOST) for rank in message.rankID)
        return e.AdvisorTask(ranks=tuple(zip(ranks, message.op, strict=True)))
    if not 0 < len(message.stressParam) <= MOST:
        raise BadSignal(f"it lists {len(message.stressParam)} ranks; allowed are 1 to {MOST}")
    tests = []
    for rank, listed in message.stressParam.items():
        if not 0 < len(listed.ops) <= MOST_TESTS or min(listed.ops) < 0:
            raise BadSignal(f"tests {list(listed.ops[:9])}: allowed are 1 to {MOST_TESTS} numbers")
        tests.append((_number("rank", rank, MOST), tuple(listed.ops)))
    return e.AdvisorTask(tests=tuple(sorted(tests)))


def _of_another(job_id: str, this: str) -> BadSignal:
    names = (job_name.name(found)[:60] for found in (job_id, this))
    return BadSignal("it is for job {!r}, and this is {!r}".format(*names))


def _profile(message: Any) -> e.ProfileSwitched:
    """A switch that is neither on nor off makes no sense; an empty one is off."""
    if message.code not in (0, 200):
        raise BadSignal(f"it has code {message.code}: {message.message[:100]}")
    states = {name: getattr(message.profilingSwitch, name) for name in RANGES}
    if wrong := [f"{n} is {s[:20]!r}" for n, s in states.items() if s not in ("", "on", "off")]:
        raise BadSignal(f"{', '.join(wrong)}; allowed are on and off")
    ranges = tuple(number for number, name in enumerate(RANGES) if states[name] == "on")
    return e.ProfileSwitched(ranges, "ClusterD")


def _fault(text: str) -> int:
    return _number("fault type", text, len(FAULTS) - 1)


def _number(what: str, text: str, highest: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and int(text) <= highest):
        raise BadSignal(f"{what} {text[:60]!r} is no number from 0 to {highest}")
    return int(text)


def request_of(report: c.TellAdvisor, job: str, classes: Any) -> Any:
    """Translate a report into the request of its call."""
    ranks = [
        classes["FaultRank"](rankId=str(rank), faultType=str(kind)) for rank, kind in report.ranks
    ]
    status = classes["Status"](code=report.code, info=report.text[:1000])
    if report.call == "ReportStopComplete":
        return classes["StopCompleteRequest"](jobId=job, status=status, faultRanks=ranks)
    if report.call == "ReportRecoverStrategy":
        return classes["RecoverStrategyRequest"](
            jobId=job, faultRanks=ranks, strategies=report.strategies
        )
    if report.call == "ReportRecoverStatus":
        return classes["RecoverStatusRequest"](
            jobId=job,
            status=status,
            strategy=report.strategy,
            isolateRankIds=[str(rank) for rank, _ in report.ranks],
        )
    if report.call == "ReportProcessFault":
        return classes["ProcessFaultRequest"](jobId=job, faultRanks=ranks)
    if report.call == "ReplySwitchNicResult":
        return classes["SwitchResult"](jobId=job, result=report.code == 0)
    if report.call == "ReplyStressTestResult":
        request = classes["StressTestResult"](jobId=job)
        for rank, results in report.tests:
            of_rank = request.stressResult[str(rank)].rankResult
            for op, code, text in results:
                of_rank[str(op)].code, of_rank[str(op)].result = str(code), text[:1000]
        return request
    raise ValueError(f"no call of ClusterD is named {report.call!r}")
