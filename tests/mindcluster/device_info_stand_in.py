"""Writes a device-info ConfigMap as Ascend Device Plugin is described to."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def fault(
    name: str, codes: str, time: Any = 0, level: str = "RestartNPU", kind: str = "CardUnhealthy"
) -> dict[str, Any]:
    """One entry of the list of faults. `codes`: as in the list, with commas."""
    times = {
        code.strip(): {"fault_time": time, "fault_level": level}
        for code in codes.split(",")
        if code.strip()
    }
    return {
        "fault_type": kind,
        "npu_name": name,
        "large_model_fault_level": level,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": codes,
        "fault_time_and_level_map": times,
    }


def configmap(
    *faults: dict[str, Any],
    switches: Any = (),
    separated: str = "",
    recovering: str = "",
    resource: str = "Ascend910",
    listed: str | None = None,
    chips: int = 8,
) -> dict[str, str]:
    """The keys of the ConfigMap. `listed`: the list of faults, as any text."""
    name = f"huawei.com/{resource}"
    info = {
        "DeviceList": {
            name: ",".join(f"{resource}-{n}" for n in range(chips)),
            f"{name}-Fault": json.dumps(faults) if listed is None else listed,
            f"{name}-NetworkUnhealthy": "",
            f"{name}-Unhealthy": "",
            f"{name}-Recovering": recovering,
        },
        "UpdateTime": 1717000000,
    }
    whole = {"DeviceInfo": info, "SuperPodID": -2, "ServerIndex": -2}
    check = hashlib.sha256(json.dumps(info).encode()).hexdigest()
    switch = {"FaultCode": switches, "FaultLevel": "", "UpdateTime": 0, "NodeStatus": "Healthy"}
    return {
        "DeviceInfoCfg": json.dumps({**whole, "CheckCode": check}),
        "SwitchInfoCfg": json.dumps(switch),
        "ManuallySeparateNPU": separated,
    }
