"""What runs once for a dataset: index its videos, and rewrite them so that they decode fast."""
