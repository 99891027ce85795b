"""What lies in the output: parts, outcomes, revisions, publications, and the places readers find."""
