"""The networks, their norm, and loading of weights."""
