"""Plots and tables from a run's metrics; torch is imported for the frames of videos alone."""
