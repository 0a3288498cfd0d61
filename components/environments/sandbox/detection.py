"""This machine -> which isolation it has, found out by trying, once."""

import functools
import sys

from components.environments.sandbox.lane import Lane
from components.environments.sandbox.limits import Isolation
from components.errors import SandboxFailedError

ADVICE = (
    "this machine cannot isolate code that a model wrote: {reason}. It takes Linux on x86-64 or ARM64 where a process "
    "may make user, mount, network and process namespaces (sysctl kernel.unprivileged_userns_clone=1 or "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container a seccomp and AppArmor profile that allows unshare "
    "and mount). Where such code can do no harm (a machine of its own, a pod under gVisor: platform.runtime_class), "
    "say environment.isolation: process"
)


@functools.cache
def reason_against(isolation: Isolation) -> str | None:
    """None where the isolation works here, else what is missing and what to do. Tried once in this process."""
    if sys.platform != "linux":
        return f"code that a model wrote runs on Linux alone, not on {sys.platform}; run this in a container"
    lane = Lane(isolation)
    try:
        lane.start()
    except (SandboxFailedError, OSError) as error:
        return ADVICE.format(reason=str(error).removeprefix("the sandbox could not be set up: "))
    finally:
        lane.close()
    return None
