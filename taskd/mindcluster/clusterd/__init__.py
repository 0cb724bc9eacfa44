"""The client of ClusterD, MindCluster's fault center, over gRPC; extra `taskd[clusterd]`."""
