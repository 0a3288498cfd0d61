"""A repository of the Hugging Face Hub -> a folder of this machine, fetched once and found again without network.

The one place that downloads from the hub. A token is found where the hub's own client keeps it, or in the file that a
caller names; it is never part of a recipe.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from components.errors import DataError, Problem


def hub_folder(
    name: str,
    *,
    kind: Literal["dataset", "model"] = "dataset",
    revision: str | None = None,
    patterns: Sequence[str] = (),
    cache: str | None = None,
    offline: bool = False,
    token_file: str | None = None,
) -> Path:
    """The folder of a repository `owner/name` at a revision (branch, tag or commit), with the files of `patterns`.

    `cache` is where the hub's files lie; by default where its client keeps them. `offline` takes what is there and asks
    nobody. Raises DataError that names the repository and says what the hub answered.
    """
    import huggingface_hub  # with it come HTTP clients, and most runs read their own files
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else None
        found = huggingface_hub.snapshot_download(
            name,
            repo_type=kind,
            revision=revision,
            allow_patterns=list(patterns) or None,
            cache_dir=cache,
            local_files_only=offline,
            token=token,
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        where = f"hub:{name}" + (f"@{revision}" if revision else "")
        hint = "it is not in the cache of this machine" if offline else "check its name, its revision and your access"
        raise DataError(Problem(where, cache or "", f"the hub gave nothing: {_first_line(error)}; {hint}")) from error
    return Path(found)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
