"""Fault codes of devices: `faultCode.json` and `faultCustomization.json` as their users have them,
and what level a device has by them.

Pure but for `configuration.py` (reads a directory), `watch.py` (hears that it has changed) and
`separated.py` (the journal of devices that only people release). What a level asks of the job is
`taskd.mindcluster.levels`; the manager's side is `manager/device_codes.py`.
"""

from taskd.mindcluster.faults.configuration import Configuration, Refused, load
from taskd.mindcluster.faults.evaluation import Devices, Judgement
from taskd.mindcluster.faults.findings import Finding

__all__ = ["Configuration", "Devices", "Finding", "Judgement", "Refused", "load"]
