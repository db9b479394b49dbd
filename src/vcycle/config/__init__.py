"""What a run is told: its configuration, recipes, models and flags; no torch."""
