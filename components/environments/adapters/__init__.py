"""Environments that were written for other libraries -> environments of this one; none of those is imported."""
