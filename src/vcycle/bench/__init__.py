"""Measurements that users make on their own machine, with their own videos."""
