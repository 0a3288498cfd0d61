"""A policy -> a number with an interval."""
