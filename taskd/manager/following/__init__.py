"""What the manager follows besides its agents and operators: ClusterD, the Kubernetes API, the
labels of the pod, the file profilingSwitch."""
