"""What a run is told: its configuration, recipes and flags; no torch."""
