"""What people see of a run: pages, tables, and texts for the terminal."""
