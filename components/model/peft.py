"""A PEFT adapter directory <-> an `Adapter`. This is the one form in which an adapter lies on a disk.

The directory holds `adapter_config.json` and `adapter_model.safetensors`, with PEFT's names and its `[out, in]` order.
A directory of another method (DoRA, KaSA, ...) or with a feature that is not supported here is refused by field name.
"""

import json
import re
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from safetensors.flax import load_file
from safetensors.numpy import save_file

from components import storage
from components.config import load
from components.errors import ConfigError, WeightsError
from components.model.architecture import Architecture
from components.model.base import LINEAR_MODULES, module_name
from components.model.lora import Adapter, LoraConfig, LoraPair, module_names, module_shapes
from components.storage import Uri

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_INNER = re.compile(r"^(model\.language_model|language_model\.model)\.")
_CHOOSING = ("target_modules", "exclude_modules", "layers_to_transform")
_SUPPORTED = {
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "base_model_name_or_path",
    "lora_dropout",
    "inference_mode",
    "revision",
    "peft_version",
    "auto_mapping",
    "megatron_core",
    "runtime_config",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "qalora_group_size",  # means something beside use_qalora only, which is refused
}
"""Fields that this reader understands, or that say nothing about the weights on the disk."""
_NEUTRAL: tuple[Any, ...] = (None, False, "none", [], {}, "")
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base alone and train both matrices; the others are other methods."""
_SETTINGS = {
    "r": "rank",
    "lora_alpha": "alpha",
    "use_rslora": "rslora",
    "rank_pattern": "rank_pattern",
    "alpha_pattern": "alpha_pattern",
}
"""Fields of PEFT, and those of `LoraConfig` that they are."""


def save_adapter(folder: Path, adapter: Adapter, config: LoraConfig, *, base_name: str) -> None:
    """Write `adapter` so that `peft` loads it onto the model `base_name`. The configuration is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for name, pair in zip(module_names(adapter), _pairs(adapter), strict=True):
        tensors[f"base_model.model.{name}.lora_A.weight"] = np.ascontiguousarray(np.asarray(pair.a).T)
        tensors[f"base_model.model.{name}.lora_B.weight"] = np.ascontiguousarray(np.asarray(pair.b).T)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "use_rslora": config.rslora,
        "rank_pattern": dict(config.rank_pattern),
        "alpha_pattern": dict(config.alpha_pattern),
        "target_modules": _targets(adapter),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n")


def load_adapter(folder: Path, architecture: Architecture) -> Adapter:
    """Read a PEFT directory as an adapter of this architecture. Raises WeightsError naming the field or the tensor."""
    config = read_config(folder)
    sides = _by_module(folder / WEIGHTS_FILE)
    _refuse_missing(folder, architecture, sides)
    layers = tuple(
        {
            module: _pair(sides.pop(module_name(index, module)), config, architecture, index, module)
            for module in LINEAR_MODULES
            if module_name(index, module) in sides
        }
        for index in range(architecture.n_layers)
    )
    if sides:
        raise WeightsError(f"{folder}: no module of this {architecture.family} model is named {sorted(sides)[0]!r}")
    if not any(layers):
        raise WeightsError(f"{folder / WEIGHTS_FILE}: holds no tensor, so the adapter changes nothing")
    return Adapter(layers=layers)


def open_adapter(place: Uri, architecture: Architecture) -> tuple[Adapter, LoraConfig]:
    """`load_adapter` and `read_config` of a local folder or a gs:// URI. Raises WeightsError as they do."""
    if not storage.is_remote(place):
        return load_adapter(Path(place), architecture), read_config(Path(place))
    with tempfile.TemporaryDirectory(prefix="adapter.") as folder:
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            try:
                storage.download(storage.join(place, name), Path(folder, name))
            except FileNotFoundError:
                raise WeightsError(f"{storage.join(place, name)} does not exist; a PEFT adapter holds it") from None
        return load_adapter(Path(folder), architecture), read_config(Path(folder))


def read_config(folder: Path) -> LoraConfig:
    """Ranks, alphas and the scale rule of a PEFT directory. Raises WeightsError for what would be half-read."""
    path = folder / CONFIG_FILE
    settings = _read_json(path)
    if settings.get("peft_type") != "LORA":
        raise WeightsError(f"{path}: peft_type is {settings.get('peft_type')!r}; only LORA adapters are read")
    for field, value in settings.items():
        plain = value in _PLAIN_STARTS if field == "init_lora_weights" else field in _SUPPORTED or value in _NEUTRAL
        if not plain:
            raise WeightsError(f"{path}: {field} = {value!r} is not supported; export the adapter as plain LoRA")
    for field in ("r", "lora_alpha"):
        if settings.get(field) is None:
            raise WeightsError(f"{path}: the field {field!r} is missing")
    given = {field: settings[field] for field in _SETTINGS if settings.get(field) is not None}
    try:
        return load(LoraConfig, {_SETTINGS[field]: value for field, value in given.items()})
    except ConfigError as error:
        problem = error.problems[0]
        names = {own: field for field, own in _SETTINGS.items()}
        own, *rest = problem.where.split(".")
        raise WeightsError(f"{path}: {'.'.join([names[own], *rest])} = {problem.value!r}: {problem.message}") from None


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise WeightsError(f"{path} does not exist; a PEFT adapter directory holds it") from None
    except json.JSONDecodeError as error:
        raise WeightsError(f"{path}: is not JSON ({error})") from None


def _read_tensors(path: Path) -> Mapping[str, Float[Array, "..."]]:
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; only safetensors are read, so save the adapter with them")
    return load_file(path)


def _by_module(path: Path) -> dict[str, dict[str, Float[Array, "_ _"]]]:
    """The A and B of each module, turned to `[in, out]`. Raises WeightsError for any other tensor, and for two of one.

    The language model of a multimodal one has another prefix, which is not kept.
    """
    sides: dict[str, dict[str, Float[Array, "_ _"]]] = {}
    origins: dict[tuple[str, str], str] = {}
    for key, tensor in _read_tensors(path).items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise WeightsError(f"{path}: unexpected tensor {key!r}; only lora_A and lora_B are read")
        module, side = _INNER.sub("model.", match["module"], count=1), match["side"]
        first = origins.setdefault((module, side), key)
        if first != key:
            raise WeightsError(f"{path}: {first!r} and {key!r} are both the lora_{side} of {module}; keep one of them")
        sides.setdefault(module, {})[side] = tensor.astype(jnp.float32).T
    return sides


def _refuse_missing(folder: Path, architecture: Architecture, found: Collection[str]) -> None:
    """Raises WeightsError for modules of this model that the configuration targets and the weights leave out.

    The rule is PEFT's. Where the configuration does not say what it targets, the tensors do.
    """
    settings = _read_json(folder / CONFIG_FILE)
    targets, excluded, layers = (settings.get(key) for key in _CHOOSING)
    if targets is None:
        return
    chosen = [layers] if isinstance(layers, int) else layers
    lost = [
        name
        for name in module_shapes(architecture)
        if _chooses(targets, name)
        and not (excluded and _chooses(excluded, name))
        and (not chosen or int(name.split(".")[2]) in chosen)
        and name not in found
    ]
    if lost:
        raise WeightsError(
            f"{folder}: target_modules names {lost[0]} and {len(lost) - 1} more modules of this {architecture.family} "
            f"model, and {WEIGHTS_FILE} holds no tensor of them; the adapter was not written whole"
        )


def _chooses(modules: str | list[str], name: str) -> bool:
    """Whether a field such as `target_modules` means the module: a pattern for all of its name, or names' ends."""
    if isinstance(modules, str):
        try:
            return modules.lower() == "all-linear" or re.fullmatch(modules, name) is not None
        except re.error as error:
            what = f"{modules!r} in target_modules or exclude_modules"
            raise WeightsError(f"{CONFIG_FILE}: {what} is no regular expression: {error}") from None
    return any(f".{name}".endswith(f".{each}") for each in modules)


def _pairs(adapter: Adapter) -> list[LoraPair]:
    return [pair for layer in adapter.layers for pair in layer.values()]


def _targets(adapter: Adapter) -> list[str]:
    """Short names where every layer binds the same modules, whole names otherwise."""
    kinds = {frozenset(layer) for layer in adapter.layers}
    return sorted(kinds.pop()) if len(kinds) == 1 else list(module_names(adapter))


def _pair(
    sides: Mapping[str, Float[Array, "_ _"]], config: LoraConfig, architecture: Architecture, layer: int, module: str
) -> LoraPair:
    name = module_name(layer, module)
    inputs, outputs = architecture.linear_shape(module, layer)
    rank = config.rank_of(name)
    wanted = {"A": (inputs, rank), "B": (rank, outputs)}
    for side, shape in wanted.items():
        found = sides[side].shape if side in sides else None
        if found != shape:
            stored, needed = found and found[::-1], shape[::-1]
            raise WeightsError(f"{name}.lora_{side}.weight has shape {stored}, and this model needs {needed}")
    return LoraPair(a=sides["A"], b=sides["B"], scale=config.scale_of(name))
