"""What the id of a run on a Kubeflow Pipelines server looks like, to tell it from a run's folder."""

import re

_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_run_id(text: str) -> bool:
    """Whether it is a UUID, as the server gives one to every run."""
    return _RUN_ID.fullmatch(text) is not None
