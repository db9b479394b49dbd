"""From a file and frame numbers to frames on a grid."""
