"""Multigrid training for video models: the same accuracy, several times faster."""
