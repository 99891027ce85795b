"""The report of a night, and the page of all nights: one file each, which needs nothing else."""
