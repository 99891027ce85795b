"""Input formats, one file each, behind one seam: `protocol.Source`."""
