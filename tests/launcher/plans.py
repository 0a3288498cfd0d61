"""Plans of jobs for tests."""

from typing import Any

from components.config import load
from components.launcher.job import JobPlan
from components.launcher.jobset import Pace
from components.launcher.platform import PlatformConfig

IMAGE = "registry.example/headrace@sha256:" + "0" * 64
FOUR_HOSTS = {"accelerator": "v5e", "topology": "4x4"}
QUICK = Pace(look=0.02, pulse=0.1, repeat=60.0)


def plan(**values: Any) -> JobPlan:
    """A job on one CPU host; `platform` adds to its platform."""
    platform = {"launcher": "jobset", "image": IMAGE, **values.pop("platform", {})}
    chosen = {"run": "run-1", "task": "train", "command": ("python", "-c", "pass")} | values
    return JobPlan(platform=load(PlatformConfig, platform, where="platform"), **chosen)
