"""States that merge exactly: what is measured where the rows are."""
