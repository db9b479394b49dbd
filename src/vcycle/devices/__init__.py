"""Where a run computes: its processes, their devices, cores and memory, and in what numbers."""
