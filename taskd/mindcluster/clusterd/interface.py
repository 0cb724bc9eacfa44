"""ClusterD's gRPC interfaces `Recover` and `TrainingDataTrace`, as far as a job uses them.

The messages are a table here and not generated code, which would need a protobuf of the generator's
major version: field numbers are the contract, and whatever protobuf is installed makes the classes.
Needs protobuf.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "Recover"

_TEXT, _BOOL, _INT32, _INT64, _MESSAGE = (
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
)
_SIMPLE = {"string": _TEXT, "bool": _BOOL, "int32": _INT32, "int64": _INT64}

# message -> its fields as "name: type", in the order of their numbers; [] is repeated, {} a map by
# strings
MESSAGES = {
    "Status": ("code: int32", "info: string"),
    "ClientInfo": ("jobId: string", "role: string"),
    "FaultRank": ("rankId: string", "faultType: string"),
    "ProcessManageSignal": (
        "uuid: string",
        "jobId: string",
        "signalType: string",
        "actions: string[]",
        "faultRanks: FaultRank[]",
        "changeStrategy: string",
        "timeout: int64",
        "nodeRankIds: string[]",
        "extraParams: string",
    ),
    "StopCompleteRequest": ("jobId: string", "status: Status", "faultRanks: FaultRank[]"),
    "RecoverStrategyRequest": (
        "jobId: string",
        "faultRanks: FaultRank[]",
        "strategies: string[]",
    ),
    "RecoverStatusRequest": (
        "jobId: string",
        "status: Status",
        "strategy: string",
        "isolateRankIds: string[]",
    ),
    "ProcessFaultRequest": ("jobId: string", "faultRanks: FaultRank[]"),
    # tasks: ranks, and whether each goes to its backup network card
    "SwitchRankList": ("rankID: string[]", "op: bool[]", "jobId: string"),
    "SwitchResult": ("jobId: string", "result: bool"),
    # by rank, and results by the number of the test
    "StressOpList": ("ops: int64[]",),
    "StressTestRankParams": ("stressParam: StressOpList{}", "jobId: string"),
    "StressTestOpResult": ("code: string", "result: string"),
    "StressTestRankResult": ("rankResult: StressTestOpResult{}",),
    "StressTestResult": ("jobId: string", "stressResult: StressTestRankResult{}"),
    # of TrainingDataTrace: what ranks profile, "on" or "off" each
    "ProfilingClientInfo": ("jobId: string", "role: string"),
    "ProfilingSwitch": tuple(
        f"{name}: string"
        for name in ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")
    ),
    "DataStatusRes": ("message: string", "profilingSwitch: ProfilingSwitch", "code: int32"),
}
# call -> request, reply
CALLS = {
    "Init": ("ClientInfo", "Status"),
    "Register": ("ClientInfo", "Status"),
    "ReportStopComplete": ("StopCompleteRequest", "Status"),
    "ReportRecoverStrategy": ("RecoverStrategyRequest", "Status"),
    "ReportRecoverStatus": ("RecoverStatusRequest", "Status"),
    "ReportProcessFault": ("ProcessFaultRequest", "Status"),
    "ReplySwitchNicResult": ("SwitchResult", "Status"),
    "ReplyStressTestResult": ("StressTestResult", "Status"),
}
# their replies are streams: of signals, and of tasks and switches
SUBSCRIBE = ("SubscribeProcessManageSignal", "ClientInfo", "ProcessManageSignal")
TASKS = {
    "SubscribeNotifySwitch": ("ClientInfo", "SwitchRankList"),
    "SubscribeNotifyExecStressTest": ("ClientInfo", "StressTestRankParams"),
    "SubscribeDataTraceSwitch": ("ProfilingClientInfo", "DataStatusRes"),
}
# calls of another service
SERVICES = {"SubscribeDataTraceSwitch": "TrainingDataTrace"}


def _entry(message: Any, field: str, value: str) -> str:
    """Add the message type of a map's entries, as protobuf has it. Returns its name."""
    label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    entry = message.nested_type.add(name=f"{field[0].upper()}{field[1:]}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_TEXT, label=label)
    entry.field.add(name="value", number=2, type=_MESSAGE, label=label, type_name=f".{value}")
    return str(entry.name)


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="taskd/recover.proto", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, line in enumerate(fields, 1):
            field, kind = line.split(": ")
            many = kind.endswith(("[]", "{}"))
            if kind.endswith("{}"):
                kind = f"{name}.{_entry(message, field, kind.removesuffix('{}'))}"
            kind = kind.removesuffix("[]")
            added = message.field.add(
                name=field,
                number=number,
                type=_SIMPLE.get(kind, _MESSAGE),
                label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if many
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
            )
            if kind not in _SIMPLE:
                added.type_name = f".{kind}"
    # a pool of its own: in the default one another package may have messages of these names
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in MESSAGES
    }


CLASSES = _classes()


def path(call: str) -> str:
    return f"/{SERVICES.get(call, SERVICE)}/{call}"
