"""Fault codes of devices: reads `faultCode.json`, `SwitchFaultCode.json` and
`faultCustomization.json` in the vendor's format, and a node's device-info (`device_info.py`), and
derives each device's level from them (`device.py`).

Pure except for `configuration.py`, which reads a directory. `taskd.mindcluster.levels` has what a
level asks of the job; the manager's side is `manager/devices/`.
"""
