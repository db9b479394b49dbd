"""The command line: a file a command, and what several of them share."""
