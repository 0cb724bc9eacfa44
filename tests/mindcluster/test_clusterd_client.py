"""The connection to ClusterD: what a broken, slow or malicious server does to it."""

from __future__ import annotations

import queue
import select
import subprocess
import threading
from concurrent import futures

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd import settings
from taskd.core import commands as c
from taskd.core import events as e
from taskd.manager.following import clusterd
from taskd.manager.following.clusterd import ClusterDConnection
from taskd.mindcluster.clusterd import client, interface
from taskd.mindcluster.clusterd.client import WAITING, Certificates, Client
from taskd.mindcluster.clusterd.translation import BadSignal, event_of, request_of, task_of
from tests.mindcluster.clusterd_line import PATIENCE, Line, connected
from tests.mindcluster.clusterd_stand_in import StandIn

SIGNAL = interface.CLASSES["ProcessManageSignal"]


def test_signals_arrive_in_order_and_reports_are_told(cluster, line):
    for number in range(50):
        cluster.send("keep-alive", uuid=str(number))
    line.until(lambda seen: len(seen) == 51)
    assert [s.uuid for s in line.seen[1:]] == [str(n) for n in range(50)]
    line.client.send(c.TellAdvisor("ReportProcessFault", ranks=((3, 0), (5, 1))))
    told = cluster.wait("ReportProcessFault")
    assert [(f.rankId, f.faultType) for f in told.faultRanks] == [("3", "0"), ("5", "1")]


def test_tasks_arrive_and_their_results_are_told(cluster, connect, caplog):
    line = connect(f"127.0.0.1:{cluster.port}")
    line.until(connected)
    for call in interface.TASKS:
        cluster.wait(call)
    cluster.switch_nics({0: True, 3: False})
    cluster.stress_test({1: [0], 2: [0, 1]})
    line.until(lambda seen: len(seen) == 3)
    assert {*line.seen[1:]} == {
        e.AdvisorTask(ranks=((0, True), (3, False))),
        e.AdvisorTask(tests=((1, (0,)), (2, (0, 1)))),
    }
    line.client.send(c.TellAdvisor("ReplySwitchNicResult", 1, "why"))
    results = ((1, ((0, 2, "core 3"),)), (2, ((0, 0, ""), (1, 0, ""))))
    line.client.send(c.TellAdvisor("ReplyStressTestResult", 1, tests=results))
    assert not cluster.wait("ReplySwitchNicResult").result
    told = cluster.wait("ReplyStressTestResult")
    found = {
        (rank, op, result.code, result.result)
        for rank, of_rank in told.stressResult.items()
        for op, result in of_rank.rankResult.items()
    }
    assert found == {("1", "0", "2", "core 3"), ("2", "0", "0", ""), ("2", "1", "0", "")}
    cluster.profile(Step="on", FP="off", CommunicationOperator="on")
    cluster.profile(Step="perhaps")
    cluster.profile()
    line.until(lambda seen: len(seen) == 5)
    assert line.seen[3:] == [
        e.ProfileSwitched((0, 4), "ClusterD"),
        e.ProfileSwitched((), "ClusterD"),
    ]
    # the stream of signals ends and begins again, those of tasks stay
    cluster.cut()
    line.until(lambda seen: seen.count(e.AdvisorConnected(True)) == 2)
    assert cluster.count("SubscribeNotifySwitch") == 1
    cluster.stress_test({1: []})
    cluster.switch_nics({4: True})
    line.until(lambda seen: e.AdvisorTask(ranks=((4, True),)) in seen)


@given(
    st.one_of(
        st.builds(
            interface.CLASSES["SwitchRankList"],
            rankID=st.lists(st.one_of(st.integers(-5, 300_000).map(str), st.text(max_size=9))),
            op=st.lists(st.booleans()),
            jobId=st.sampled_from(["", "job", "another"]),
        ),
        st.builds(
            interface.CLASSES["StressTestRankParams"],
            stressParam=st.dictionaries(
                st.one_of(st.integers(-5, 9).map(str), st.text(max_size=9)),
                st.builds(
                    interface.CLASSES["StressOpList"],
                    ops=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9),
                ),
                max_size=4,
            ),
            jobId=st.sampled_from(["", "job", "another"]),
        ),
    )
)
def test_any_task_is_an_event_or_refused_with_the_reason(message):
    try:
        task = task_of(message, "job")
    except BadSignal as error:
        assert str(error)
    else:
        assert message.jobId != "another" and bool(task.ranks) != bool(task.tests)
        assert all(0 <= op < 2**63 for _, ops in task.tests for op in ops)


@pytest.mark.parametrize("call", ["Init", "Register"])
def test_a_clusterd_that_does_not_register_the_job_gives_it_tasks(
    cluster, monkeypatch, caplog, call
):
    """A job without process recovery is refused, and its ranks are profiled nevertheless."""
    cluster.refuses[call] = 403
    made = Client(f"127.0.0.1:{cluster.port}", "job")
    line = Line(made)
    try:
        cluster.wait("SubscribeDataTraceSwitch")
        cluster.profile(Step="on")
        line.until(lambda seen: seen == [e.ProfileSwitched((0,), "ClusterD")])
        cluster.wait(call, 2)
        assert f"{call} is refused with code 403" in caplog.text
        cluster.refuses.clear()
        line.until(lambda seen: e.AdvisorConnected(True) in seen)
    finally:
        made.close()


def test_a_clusterd_that_refuses_a_job_is_asked_less_and_less_often(cluster, monkeypatch):
    """It logs each of these calls."""
    waits = []

    class Over(threading.Event):
        def wait(self, timeout=None):
            if threading.current_thread().name == "clusterd-signals":
                waits.append(timeout)
            return super().wait(0.0)

    cluster.refuses["Init"] = 403
    made = Client(f"127.0.0.1:{cluster.port}", "job")
    monkeypatch.setattr(made, "_over", Over())
    try:
        made.start()
        cluster.wait("Init", 6)
    finally:
        made.close()
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 10.0]


def test_a_report_of_many_ranks_has_the_time_that_their_labels_take(cluster, line, monkeypatch):
    """A label for each pod, of which ClusterD writes few in a second."""
    monkeypatch.setattr(client, "CALL_SECONDS", 0.1)
    monkeypatch.setattr(client, "CALL_SECONDS_PER_RANK", 0.2)
    cluster.seconds_per_label = 0.1
    line.client.send(c.TellAdvisor("ReportProcessFault", ranks=tuple((r, 1) for r in range(8))))
    line.until(lambda seen: "stopTrain" in [getattr(s, "kind", "") for s in seen])


def test_a_stream_that_ends_is_opened_again(cluster, line):
    cluster.cut()
    line.until(lambda seen: seen.count(e.AdvisorConnected(True)) == 2)
    assert [s.on for s in line.seen] == [True, False, True]


def test_a_stream_that_was_open_for_long_is_opened_again_without_a_word(
    cluster, connect, monkeypatch
):
    """ClusterD ends it with each fault that it has handled: it is not gone then."""
    monkeypatch.setattr(client, "AGAIN", 0.0)
    line = connect(f"127.0.0.1:{cluster.port}")
    line.until(connected)
    cluster.wait("Subscribe")
    cluster.cut()
    line.until(lambda seen: seen.count(e.AdvisorConnected(True)) == 2)
    assert [s.on for s in line.seen] == [True, True]
    # a call that reaches a server just as it stops may be left without an end by gRPC
    cluster.wait("Subscribe", 2)
    cluster.close()
    line.until(lambda seen: e.AdvisorConnected(False) in seen)


def test_a_proxy_in_the_pod_is_where_clusterd_is():
    given = {"MINDX_SERVER_IP": "10.0.0.1:77"}
    assert settings.clusterd_address(given) == "10.0.0.1:77"
    assert settings.clusterd_address({**given, "LOCAL_PROXY_ENABLE": "on"}) == "127.0.0.1:8899"
    assert settings.clusterd_role({"LOCAL_PROXY_ENABLE": "on"}) == "lead"
    assert settings.clusterd_role({"LOCAL_PROXY_ENABLE": "on", "TASKD_CLUSTERD": "off"}) == "off"


def test_a_clusterd_that_starts_later_is_found(connect):
    first = StandIn(("retry",))
    port = first.port
    first.close()
    line = connect(f"127.0.0.1:{port}")
    assert list(line.client.happened()) == []
    second = StandIn(("retry",), f"127.0.0.1:{port}")
    try:
        line.until(connected)
    finally:
        second.close()


def test_a_report_of_an_earlier_stream_is_dropped(cluster, line, caplog):
    cluster.cut()
    cluster.wait("Subscribe", 2)  # the manager does not know of this stream yet
    line.client.send(c.TellAdvisor("ReportStopComplete"))
    line.until(lambda seen: seen.count(e.AdvisorConnected(True)) == 2)
    line.client.send(c.TellAdvisor("ReportProcessFault"))
    cluster.wait("ReportProcessFault")
    assert "ReportStopComplete" not in [call for call, _ in cluster.heard]
    assert "dropped a report to ClusterD" in caplog.text


def test_a_signal_that_cannot_be_handled_does_not_lose_the_next_one(cluster, line, caplog):
    for uuid in ("a", "b"):
        cluster.send("keep-alive", uuid=uuid)
    heard = []

    def feed(event, now):
        heard.append(event.uuid)
        if event.uuid == "a":
            raise RuntimeError("a defect")

    while len(heard) < 2:
        assert select.select([line.client.descriptor], [], [], PATIENCE)[0], heard
        ClusterDConnection(line.client).poll(feed, 0.0)
    assert heard == ["a", "b"] and "a defect" in caplog.text


def test_a_flood_is_bounded_and_the_last_reports_are_kept(cluster, line):
    for _ in range(20):
        cluster.send("keep-alive", again=WAITING)
    assert line.client._signals.qsize() <= WAITING
    # it takes seconds, in which the stand-in sends keep-alives of its own
    line.until(lambda seen: len(seen) > 20 * WAITING)
    quiet = Client("127.0.0.1:1", "job")  # never started: nobody takes them
    for number in range(WAITING + 10):
        quiet.send(c.TellAdvisor("ReportRecoverStatus", code=number))
    kept = [quiet._reports.get_nowait()[1].code for _ in range(WAITING)]
    assert kept == list(range(10, WAITING + 10))
    quiet.close()


class Broken(grpc.GenericRpcHandler):
    """Answers each call with the same bytes, or never."""

    def __init__(self, answer):
        self.answer, self.stuck = answer, threading.Event()

    def service(self, details):
        def one(request, context):
            if self.answer is None:
                self.stuck.wait(PATIENCE)
            return self.answer or b""

        def many(request, context):
            for _ in range(100):
                yield one(request, context)

        if details.method.endswith("Signal"):
            return grpc.unary_stream_rpc_method_handler(many)
        return grpc.unary_unary_rpc_method_handler(one)


@pytest.mark.parametrize("answer", [b"\xff" * 100, b"\x08\x90\x03", b"", b"x" * (20 << 20), None])
def test_a_server_that_speaks_garbage_or_nothing_at_all(answer, connect, caplog):
    handler = Broken(answer)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        line = connect(f"127.0.0.1:{port}")
        line.client.send(c.TellAdvisor("ReportProcessFault"))
        if answer == b"":  # all fields at their defaults: a valid status, and empty signals
            line.until(connected)
        else:
            threading.Event().wait(1.0)  # for it to do its worst
            assert not connected(list(line.client.happened()))
        line.client.close()
        assert not any(thread.is_alive() for thread in line.client._threads)
    finally:
        handler.stuck.set()
        server.stop(0).wait()


def test_tls(tmp_path, connect):
    for name, subject in (
        ("ca", "/CN=authority"),
        ("server", "/CN=localhost"),
        ("stranger", "/CN=other"),
    ):
        key, cert = tmp_path / f"{name}.key", tmp_path / f"{name}.pem"
        signed = [] if name == "ca" else ["-CA", tmp_path / "ca.pem", "-CAkey", tmp_path / "ca.key"]
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", subject]
        made += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
        made += ["-keyout", key, "-out", cert, *signed]
        subprocess.run(made, check=True, capture_output=True)
    credentials = grpc.ssl_server_credentials(
        [((tmp_path / "server.key").read_bytes(), (tmp_path / "server.pem").read_bytes())]
    )
    cluster = StandIn(("retry",), credentials=credentials)
    try:
        line = connect(f"127.0.0.1:{cluster.port}", Certificates(tmp_path / "ca.pem"))
        line.until(connected)
        # one who trusts another authority
        stranger = connect(f"127.0.0.1:{cluster.port}", Certificates(tmp_path / "stranger.pem"))
        threading.Event().wait(0.5)
        assert not connected(list(stranger.client.happened()))
    finally:
        cluster.close()


NUMBERS = st.one_of(st.integers(-5, 300_000).map(str), st.text(max_size=12))


@given(
    st.builds(
        SIGNAL,
        uuid=st.text(max_size=400),
        jobId=st.sampled_from(["", "job", "another"]),
        signalType=st.text(max_size=300),
        actions=st.lists(st.text(max_size=300), max_size=3),
        faultRanks=st.lists(
            st.builds(interface.CLASSES["FaultRank"], rankId=NUMBERS, faultType=NUMBERS), max_size=3
        ),
        timeout=st.integers(-(2**63), 2**63 - 1),
        nodeRankIds=st.lists(NUMBERS, max_size=3),
    )
)
def test_any_signal_is_an_event_or_refused_with_the_reason(signal):
    try:
        event = event_of(signal, "job")
    except BadSignal as error:
        assert str(error)
    else:
        assert signal.jobId != "another" and 0 <= event.timeout <= 86_400
        assert all(0 <= rank <= 200_000 and kind in (0, 1, 2) for rank, kind in event.ranks)


def test_every_report_of_core_has_a_request():
    for call in interface.CALLS:
        if call.startswith("Re") and call != "Register":
            report = c.TellAdvisor(
                call, 406, "why", ((1, 0),), ("retry",), "retry", ((1, ((0, 2, "x"),)),)
            )
            request = request_of(report, "job", interface.CLASSES)
            assert type(request) is interface.CLASSES[interface.CALLS[call][0]]
            assert request.jobId == "job"
    with pytest.raises(ValueError, match="no call"):
        request_of(c.TellAdvisor("Init"), "job", interface.CLASSES)


def test_without_grpc_or_without_a_clusterd_there_is_no_line(monkeypatch, caplog):
    monkeypatch.setitem(__import__("sys").modules, "taskd.mindcluster.clusterd.client", None)
    environ = {"MINDX_SERVER_IP": "10.0.0.1"}
    line = clusterd.make(environ, "job")
    assert line.descriptor == -1 and "pip install grpcio protobuf" in caplog.text
    caplog.clear()
    for other in ({}, {**environ, "TASKD_CLUSTERD": "off"}):
        assert clusterd.make(other, "job").descriptor == -1
    assert caplog.text == ""
    nothing = ClusterDConnection()
    nothing.connect(c.ConnectAdvisor())
    nothing.report(c.TellAdvisor("ReportProcessFault"))
    nothing.poll(queue.Queue().put, 0.0)
    nothing.close()
