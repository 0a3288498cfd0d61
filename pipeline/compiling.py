"""The pipeline in Python -> the YAML that Kubeflow Pipelines runs; the same text everywhere, so it is committed."""

import tempfile
from pathlib import Path

import yaml
from kfp import compiler

from pipeline.post_training import post_training


def pipeline_yaml() -> str:
    """Compile the pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(post_training, str(path))
        return path.read_text(encoding="utf-8")


def without_retries(text: str) -> str:
    """The same pipeline for this machine, where a step that failed would fail again, minutes later."""
    documents = list(yaml.safe_load_all(text))
    for task in documents[0]["root"]["dag"]["tasks"].values():
        task.pop("retryPolicy", None)
    return yaml.safe_dump_all(documents, sort_keys=False)
