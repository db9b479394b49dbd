"""Plots and tables from a run's metrics; no torch."""
