"""How good a model is: what joins models and data."""
