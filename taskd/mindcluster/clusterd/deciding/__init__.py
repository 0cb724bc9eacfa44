"""`core`'s advisor (`core/advice.py`): decides together with ClusterD, the cluster's fault center.
Reports faults to it and acts on its signals.

ClusterD handles one fault at a time, under one uuid: it has all ranks stopped (`stopTrain`), says
which ranks are at fault (`globalFault`), asks which strategies fit, names one (`changeStrategy`)
and waits for the result. Each of these is an incident of ours: stopped is after INTERRUPT, and the
phase CONSULT waits for the strategy, which the ladder then carries out. If one of ClusterD's steps
takes longer than `Settings.advice` seconds, the incident continues with the ladder's choice.

Who decides. ClusterD decides about every fault that it finds itself: of devices, nodes and pods,
which no process can see. About a fault that a rank or an agent has found, this manager decides at
once, and reports only one that needs a node to ClusterD (`lead`), since the repair of a process
takes less time than ClusterD's first answer; or, under `follow`, ClusterD decides about these too,
if they cost a process: otherwise it begins nothing.
Its orders to save or to end count in any case, at any time.

A repeated signal counts once. A signal with an earlier uuid is late and ignored, but
`preExitProcess` has one of its own. ClusterD starts over with each stream of signals, which it ends
with each fault that it has handled, and so does this.

A restart of all ranks is beyond ClusterD's strategies. Its earlier order has then failed, and its
later orders about the same fault are answered, but not carried out.

Read `signals.py` first (signals and their effects), then `reports.py` (the reports that ClusterD
waits for, and what it knows), `strategy.py` (the strategy that it has named), `ends.py` (orders to
end that are not carried out), `telling.py` (the faults reported to it), `nodes.py` (nodes that
it takes out of service), `elastic.py` (a job that it shrinks and has grow), `hold.py` (its pause),
`hot_switch.py` (nodes that it has moved).
"""
