"""The doors through which Kubeflow enters: a signature, one import, one call."""
