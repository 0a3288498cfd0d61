"""A teacher's settings -> its weights, after a look at whether it speaks the policy's vocabulary."""

import tempfile
from pathlib import Path

import jax.numpy as jnp

from components.errors import ConfigError, Problem
from components.model.base_artifact import write_base
from components.model.footprint import read_architecture
from components.model.placement import Placement
from components.model.weights import Model, load
from components.rollout.tokenizer import Tokenizer, load_tokenizer
from components.training.tuning.settings import TeacherConfig

WHERE = "tune.distill.teacher.source"


def check_teacher(settings: TeacherConfig, vocabulary: int, tokenizer: Tokenizer) -> None:
    """Raises ConfigError where the teacher's words are not the policy's, one by one; nothing large is read.

    `vocabulary` is how many rows the policy's embedding has.
    """
    source = settings.source
    check_size(settings, vocabulary)
    theirs = load_tokenizer(source)
    if theirs.vocab_size != tokenizer.vocab_size:
        message = f"its tokenizer has {theirs.vocab_size} tokens and the policy's {tokenizer.vocab_size}"
        raise ConfigError(Problem(WHERE, source, f"{message}; a teacher must have the same vocabulary"))
    for token in range(tokenizer.vocab_size):
        one, other = theirs.decode([token]), tokenizer.decode([token])
        if one != other:
            message = f"token {token} is {one!r} there and {other!r} for the policy"
            raise ConfigError(Problem(WHERE, source, f"{message}; a teacher must have the same vocabulary"))


def check_size(settings: TeacherConfig, vocabulary: int) -> None:
    """Raises ConfigError where the teacher's embedding has another number of rows than the policy's."""
    found = read_architecture(settings.source).vocab_size
    if found != vocabulary:
        message = (
            f"has {found} rows in its embedding and the policy {vocabulary}; a teacher must have the same vocabulary"
        )
        raise ConfigError(Problem(WHERE, settings.source, message))


def load_teacher(settings: TeacherConfig, placement: Placement) -> Model:
    """The teacher, frozen, beside the policy."""
    return load(settings.source, dtype=jnp.dtype(settings.dtype), quantise=settings.quantise, placement=placement)


def teacher_fingerprint(settings: TeacherConfig) -> str:
    """A hash over the teacher's files: what a resumed run must find again."""
    with tempfile.TemporaryDirectory(prefix="teacher.") as folder:
        return write_base(Path(folder), settings.source, dtype=settings.dtype, quantise=settings.quantise).fingerprint
