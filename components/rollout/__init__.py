"""Tasks -> trajectories."""
