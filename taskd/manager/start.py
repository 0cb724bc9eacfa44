"""Makes a manager from a checked config and the environment, for `python -m taskd.manager` and
`taskd.api`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from taskd import settings
from taskd.core.settings import Settings
from taskd.manager import whereabouts
from taskd.manager.config import Config
from taskd.manager.devices import node_info
from taskd.manager.devices.state import Devices
from taskd.manager.following import clusterd, kubernetes, pod_labels, profile_switch
from taskd.manager.following.sources import Source
from taskd.manager.history import observers
from taskd.manager.history.continuity import Continuity, label_key
from taskd.manager.history.journal import Journal
from taskd.manager.limits import ManagerLimits
from taskd.manager.operators import Accepted
from taskd.manager.server import Server
from taskd.protocol import addresses, secret
from taskd.settings import pod_info, variables

log = logging.getLogger("taskd.manager")


class InCharge(Exception):
    """Another manager is in charge of the job."""


def make(
    config: Config,
    environ: Mapping[str, str] = os.environ,
    host: str | None = None,
    port: int | None = None,
    successor: bool = False,
    starter: int = -1,
    rivals: Sequence[str] = (),
) -> Server:
    """Make a manager that does not listen yet. `starter`, `rivals`: see Server. Raises
    settings.BadSetting, keys.BadSecret and InCharge."""
    environ = {**environ, **config.variables}
    given, environ = environ, pod_info.environment(environ, under_way=successor)
    log_path = settings.log_path(environ)
    port = settings.port(environ) if port is None else port
    keys = secret.for_job(config.job_id, environ, port, config.nodes)
    continuity = Continuity(log_path)
    known = continuity.read()
    if not successor and config.nodes > 1:
        place = whereabouts.elsewhere(known, {**environ, "TASKD_PORT": str(port)}, config.job, keys)
        if place is not None:
            raise InCharge(
                f"the manager at {addresses.text(place)} is in charge of job {config.job}, which is"
                " under way: no other one is started"
            )
    labels = pod_info.usable(given, under_way=successor)
    ways = settings.sub_healthy_strategies(environ)
    followed = ways if variables.TASKD_SUBHEALTHY_STRATEGY.text(given) is None else {}
    api = kubernetes.make(environ, config.job, continuity, followed, labels, known)
    # with the API the job's label counts, and a later manager's pod may have another
    by_api = api.descriptor >= 0 and label_key(config.job) in known
    sources: list[Source] = [
        profile_switch.ProfileSwitch(Path(settings.profiling_switch(environ)), successor)
    ]
    if api.descriptor < 0:
        at = pod_info.directory(environ)
        sources.append(pod_labels.PodLabels(at, config.job, continuity, followed))
    switches = pod_labels.switches({} if by_api else labels, known, config.job)
    if switches % 2:
        log.warning(
            "recovery is paused, by an operator or the label process-recover-enable: the next"
            " fault ends the job; taskd recovery on"
        )
    seconds, steps = settings.dump_every(environ)
    return Server(
        settings=Settings(
            config.nodes,
            config.ranks_per_node,
            config.ladder,
            sub_healthy=ways[settings.sub_healthy_strategy(environ)],
            retries=settings.retry_times(environ),
            reschedule=settings.reschedule_timeout(environ),
            pods=settings.pod_rescheduling(environ),
            handler=settings.handler_limit(environ),
            form=settings.set_up_limit(environ),
            standstill=settings.standstill(environ),
            switches=switches,
            advice=settings.clusterd_timeout(environ),
            advisor=settings.clusterd_role(environ),
            saves=settings.preemption_is_named(environ),
            save_seconds=seconds,
            save_steps=steps,
        ),
        job=config.job,
        keys=keys,
        host=host or settings.bind_address(environ),
        port=port,
        journal=Journal(log_path, config.job),
        limits=ManagerLimits(launchers=settings.launcher_wait(environ)),
        successor=successor,
        given=settings.without_secrets(environ),
        starter=starter,
        rivals=rivals,
        accepted=Accepted(settings.fault_injection(environ), settings.fault_reports(environ)),
        devices=Devices(
            settings.fault_config(environ),
            continuity,
            settings.fault_table(environ),
            settings.device_info(environ) is not None,
        ),
        continuity=continuity,
        cluster=clusterd.make(environ, config.job_id),
        kubernetes=api,
        node_infos=node_info.make(environ),
        observers=observers.make(given),
        sources=sources,
    )
