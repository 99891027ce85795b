"""Input formats, one file each: `read_footer` for discovery, `read_piece` for scoring."""
