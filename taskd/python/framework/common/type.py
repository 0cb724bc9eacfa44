"""Names that MindCluster's guides import for the configs of proxies and agents, and those beside
them in the vendor's module: keys, and what the vendor takes where one is missing."""

LOCAL_HOST = "127.0.0.1"

CONFIG_FRAMEWORK_KEY = "Framework"
CONFIG_UPSTREAMIP_KEY = "UpstreamAddr"
CONFIG_UPSTREAMPORT_KEY = "UpstreamPort"
CONFIG_LISTENIP_KEY = "ListenAddr"
CONFIG_LISTENPORT_KEY = "ListenPort"
CONFIG_SERVERRANK_KEY = "ServerRank"
CONFIG_PROCESSRANK_KEY = "ProcessRank"
CONFIG_ROLE_KEY = "Role"

DEFAULT_AGENT_ROLE = "Agent"
DEFAULT_AGENT_UPSTREAMPORT = "9602"
DEFAULT_PROXY_ROLE = "Proxy"
DEFAULT_PROXY_UPSTREAMPORT = "9601"
DEFAULT_PRXOY_LISTENPORT = "9602"  # as the vendor spells it
DEFAULT_SERVERRANK = "0"
DEFAULT_PROCESSRANK = "-1"
DEFAULT_BIZTYPE = "DEFAULT"
