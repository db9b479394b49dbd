"""What a run takes, measured before step 0; and the plan that fits into a time by it."""
