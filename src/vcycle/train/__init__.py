"""The configuration, the loop, and what it keeps."""
