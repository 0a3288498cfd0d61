"""A launcher as a process of its own: runs the job of `tests.launcher.plans` by the kubeconfig that it finds."""

import json
import sys

from components.launcher.cluster import Cluster
from components.launcher.jobset import run_job
from components.launcher.step_job import show
from tests.launcher.plans import QUICK, plan

if __name__ == "__main__":
    run_job(plan(**json.loads(sys.argv[1])), Cluster(), show=show, pace=QUICK)
