"""The client of ClusterD, MindCluster's fault center, over gRPC; with grpcio and protobuf."""
