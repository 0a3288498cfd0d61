"""The parts of Headrace: every room turns one thing into another and knows nothing of the rooms above it."""
