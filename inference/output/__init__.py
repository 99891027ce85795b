"""The output: parts, outcomes, revisions, publications, and the folders for readers."""
