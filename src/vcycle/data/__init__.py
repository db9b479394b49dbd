"""From a manifest of videos to batches of clips on any grid."""
