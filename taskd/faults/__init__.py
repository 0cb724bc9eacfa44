"""Fault codes of devices: `faultCode.json` and `faultCustomization.json` as their users have them,
and what level a device has by them.

Pure but for `configuration.py` (reads a directory), `watch.py` (hears that it has changed) and
`separated.py` (the journal of devices that only people release). What a level asks of the job is
`taskd.core.levels`; the manager's side is `manager/device_codes.py`.
"""

from taskd.faults.configuration import Configuration, Refused, load
from taskd.faults.evaluation import Devices, Judgement
from taskd.faults.findings import Finding

__all__ = ["Configuration", "Devices", "Finding", "Judgement", "Refused", "load"]
