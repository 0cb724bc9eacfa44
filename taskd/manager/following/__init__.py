"""Sources that the manager follows besides agents and operators: ClusterD, the Kubernetes API, the
labels of the pod, the file profilingSwitch."""
