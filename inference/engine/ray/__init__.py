"""The one owner of Ray in this package."""
