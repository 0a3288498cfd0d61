"""Door: what a run measured -> whether it is promoted, exported, or neither, and why."""

from typing import NamedTuple

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def gate(section: str, promotion: str, run_folder: str) -> NamedTuple("Gated", [("decision", str), ("reasons", str)]):  # type: ignore[valid-type]  # kfp reads this form
    """Decide on the paired improvement with its interval, and on whether the run's numbers can be trusted."""
    from components.evaluation.gate import gate

    return gate(section=section, promotion=promotion, run_folder=run_folder)
