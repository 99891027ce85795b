"""Notes what a process uses that the identity does not cover, while the model loads and scores.

These are files, libraries, environment variables, network addresses, databases and programs."""
