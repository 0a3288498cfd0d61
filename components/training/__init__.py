"""Trajectories -> a better adapter."""
