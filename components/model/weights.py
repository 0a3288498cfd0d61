"""A source -> a model: an architecture and its frozen base."""

from components.model.base import random_base

__all__ = ["random_base"]
