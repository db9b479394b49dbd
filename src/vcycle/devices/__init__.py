"""Where a run computes: its processes and their devices, and what numbers these compute in."""
