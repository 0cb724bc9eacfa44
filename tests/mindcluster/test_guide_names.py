"""What the guides import, as they write it."""

from __future__ import annotations

import os
import threading

from taskd.api import init_taskd_agent, init_taskd_proxy


def test_the_proxy_of_msruns_patch():
    from taskd.api.taskd_proxy_api import init_taskd_proxy
    from taskd.python.framework.common.type import CONFIG_UPSTREAMIP_KEY, LOCAL_HOST

    config = {CONFIG_UPSTREAMIP_KEY: os.getenv("MS_SCHED_HOST", LOCAL_HOST)}
    proxy = threading.Thread(target=init_taskd_proxy, args=(config,))
    proxy.daemon = True
    proxy.start()
    proxy.join(60)
    assert not proxy.is_alive() and init_taskd_proxy(config)


def test_all_names_are_keys_and_values_of_configs(caplog):
    from taskd.python.framework.common import type as names

    assert init_taskd_proxy(
        {
            names.CONFIG_UPSTREAMIP_KEY: names.LOCAL_HOST,
            names.CONFIG_UPSTREAMPORT_KEY: names.DEFAULT_PROXY_UPSTREAMPORT,
            names.CONFIG_LISTENIP_KEY: names.LOCAL_HOST,
            names.CONFIG_LISTENPORT_KEY: names.DEFAULT_PRXOY_LISTENPORT,
            names.CONFIG_SERVERRANK_KEY: names.DEFAULT_SERVERRANK,
        }
    )
    assert init_taskd_agent(
        {
            names.CONFIG_FRAMEWORK_KEY: "MindSpore",
            names.CONFIG_UPSTREAMPORT_KEY: names.DEFAULT_AGENT_UPSTREAMPORT,
        }
    )
    assert "unknown" not in caplog.text
    # the vendor's functions pass over the keys that they do not know
    for key in (names.CONFIG_ROLE_KEY, names.CONFIG_PROCESSRANK_KEY, "Newer"):
        assert init_taskd_proxy({key: names.DEFAULT_PROCESSRANK})
        assert f"{key!r} is unknown, and ignored" in caplog.text
