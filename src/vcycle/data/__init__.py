"""What runs for every batch: from a manifest of videos to batches of clips on any grid."""
