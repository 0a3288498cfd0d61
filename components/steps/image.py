"""The image that every step runs in: containers/runtime.Dockerfile, which holds this very package."""

RUNTIME_IMAGE = "headrace-python:0.1.0"
"""kfp's local runner warns about an image without "python" in its name."""
