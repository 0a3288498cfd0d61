"""Door: an exported adapter that passed its gate -> the pointer that names it."""

from kfp import dsl

from components.steps.image import RUNTIME_IMAGE


@dsl.component(base_image=RUNTIME_IMAGE, install_kfp_package=False)
def promote(section: str, run_folder: str, adapter: dsl.Input[dsl.Model]) -> str:
    """Move the pointer, unless another run was promoted since this one started; says which it was."""
    from components.export.promotion import promote

    return promote(section=section, run_folder=run_folder, adapter=adapter.path)
