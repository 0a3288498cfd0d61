"""Numbers -> numbers, pure."""
