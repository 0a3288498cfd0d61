"""The plan of Headrace: which steps, in which order, on which machines."""
