"""What a user measures on their own machine, with their own videos."""
