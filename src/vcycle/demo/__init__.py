"""The generated videos, and the comparison that trains on them."""
