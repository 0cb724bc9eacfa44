"""Decides together with ClusterD, the cluster's fault center: what is reported to it, and what its
signals cause. It is `core`'s advisor (`core/advice.py`).

ClusterD handles one fault at a time, under one uuid: it has all ranks stopped (`stopTrain`), says
which ranks are at fault (`globalFault`), asks which strategies fit, names one (`changeStrategy`)
and waits for the result. Each of these is an incident of ours: stopped is after INTERRUPT, and the
phase CONSULT waits for the strategy, which the ladder then carries out. ClusterD's answer may take
minutes; after `Settings.advice` seconds the incident goes on as the ladder has it.

Who decides. ClusterD decides about every fault that it finds itself: of devices, nodes and pods,
which no process can see. About a fault that a rank or an agent has found, this manager decides at
once, and reports only one that needs a node to ClusterD (`lead`), since the repair of a process
takes less time than ClusterD's first answer; or, under `follow`, ClusterD decides about these too.
Its orders to save or to end count in any case, at any time.

A signal that comes twice counts once. One of an earlier uuid is late, and ignored: ClusterD begins
anew after a broken connection, and so does this.

A restart of all ranks is beyond ClusterD's strategies. What it has ordered before has failed then,
and what it orders after it about the same fault is answered, but not carried out.

Read `signals.py` first (a signal in, and what follows), then `reports.py` (what ClusterD waits for,
and what it knows), `hold.py` (its pause), `hot_switch.py` (nodes that it has moved).
"""
