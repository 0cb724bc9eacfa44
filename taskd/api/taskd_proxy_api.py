"""The proxy's functions of MindCluster's TaskD guides."""

from __future__ import annotations

import logging
from typing import Any

from taskd import settings
from taskd.api.arguments import refuse, wrong_config

log = logging.getLogger("taskd.api")


def init_taskd_proxy(config: dict[str, Any]) -> bool:
    """Check a proxy's config. taskd runs no proxy: agents connect to the manager themselves.

    Args:
        config: May have UpstreamAddr, UpstreamPort, ListenAddr, ListenPort and ServerRank. It is
            not changed.

    Returns:
        Whether the config is valid.

    Example:
        from taskd.api import init_taskd_proxy

        assert init_taskd_proxy({"ListenAddr": "127.0.0.1", "ListenPort": "9602"})
    """
    wrong = wrong_config(
        log, config, ("UpstreamAddr", "UpstreamPort", "ListenAddr", "ListenPort", "ServerRank")
    )
    if wrong:
        return refuse(log, "init_taskd_proxy", wrong)
    log.info(
        "init_taskd_proxy: nothing to start, agents connect to the manager directly (port %d)",
        settings.PORT,
    )
    return True


def destroy_taskd_proxy() -> bool:
    """Do nothing and return True: there is no proxy process to end.

    Example:
        from taskd.api import destroy_taskd_proxy

        assert destroy_taskd_proxy()
    """
    return True
