"""The connection to ClusterD: reports that may be lost, and streams that end at once."""

from __future__ import annotations

import threading

import grpc
import pytest

from taskd.core import commands as c
from taskd.core import events as e
from taskd.mindcluster.clusterd import client
from taskd.mindcluster.clusterd.client import Client
from tests.mindcluster.clusterd_line import PATIENCE


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,  # the limit of requests in a second
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ],
)
def test_only_a_report_that_cannot_have_arrived_is_sent_again(cluster, line, monkeypatch, code):
    called = failing(line, monkeypatch, code, 1, "ReportStopComplete")
    line.client.send(c.TellAdvisor("ReportStopComplete"))
    line.client.send(c.TellAdvisor("ReportRecoverStrategy"))
    cluster.wait("ReportRecoverStrategy")
    again = ["ReportStopComplete"] * (code is not grpc.StatusCode.DEADLINE_EXCEEDED)
    assert called == ["ReportStopComplete", *again, "ReportRecoverStrategy"]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_fault_is_reported_until_it_has_arrived(cluster, line, monkeypatch, code):
    """It holds no other report up, and ends with its stream."""
    monkeypatch.setattr(client, "AGAIN", 0.01)
    cluster.send("keep-alive", uuid="it has begun")
    line.until(lambda seen: len(seen) == 2)
    fault = c.TellAdvisor("ReportProcessFault", ranks=((1, 1),))
    called = failing(line, monkeypatch, code, 5, fault.call)
    line.client.send(fault)
    line.client.send(c.TellAdvisor("ReportStopComplete"))
    cluster.wait("ReportStopComplete")
    cluster.wait(fault.call)
    assert called.count(fault.call) == 6 and called.index("ReportStopComplete") < 4
    failing(line, monkeypatch, code, 10_000, fault.call)
    line.client.send(fault)
    cluster.cut()
    line.until(lambda seen: seen.count(e.AdvisorConnected(True)) == 2)
    line.client.send(c.TellAdvisor("ReportStopComplete"))
    cluster.wait("ReportStopComplete", 2)
    assert cluster.count(fault.call) == 1


def test_a_fault_is_reported_again_if_its_stream_had_not_begun(cluster, line, monkeypatch):
    """ClusterD may read the report first, and forgets it with the subscription."""
    monkeypatch.setattr(client, "AGAIN", 0.01)
    fault, begin = c.TellAdvisor("ReportProcessFault", ranks=((1, 1),)), cluster.begin

    def late(stream=None):
        if stream is None:
            begin()
        else:
            cluster.changed.wait_for(lambda: cluster.count(fault.call), PATIENCE)
            begin(stream)
            cluster.send("keep-alive", uuid="it has begun")

    monkeypatch.setattr(cluster, "begin", late)
    cluster.cut()
    line.until(lambda seen: seen.count(e.AdvisorConnected(True)) == 2)
    line.client.send(fault)
    cluster.wait(fault.call, 2)
    line.until(lambda seen: "stopTrain" in [getattr(s, "kind", "") for s in seen])
    assert [call for call, _ in cluster.heard if call in ("Subscribe", fault.call)][:4] == [
        "Subscribe",
        fault.call,
        "Subscribe",
        fault.call,
    ]


def failing(line, monkeypatch, code, times, only):
    """The next calls of this name fail. Returns the names of those that are made."""

    class Failed(grpc.RpcError):
        def code(self):
            return code

        def details(self):
            return "cut"

    called, call = [], line.client._call

    def fails(name, request):
        called.append(name)
        if name == only and called.count(name) <= times:
            raise Failed
        return call(name, request)

    monkeypatch.setattr(line.client, "_call", fails)
    return called


def test_streams_that_end_at_once_are_opened_less_and_less_often(monkeypatch):
    made, waits, lasting = Client("127.0.0.1:1", "job"), [], iter([0.0] * 10 + [2.0, 0.0])
    now = 0.0

    class Over(threading.Event):
        def wait(self, seconds):
            waits.append(seconds)
            if len(waits) == 12:
                self.set()

    def subscribe():
        nonlocal now
        now += next(lasting)
        made._streams, made._heard = made._streams + 1, True
        return "it has ended"

    monkeypatch.setattr(client.time, "monotonic", lambda: now)
    made._subscribe, made._over = subscribe, Over()
    made._listen()
    monkeypatch.undo()
    made.close()
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.05, 0.1]
