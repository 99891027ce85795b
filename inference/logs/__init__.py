"""What workers print, kept with the run."""
