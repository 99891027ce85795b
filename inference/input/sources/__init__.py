"""The input formats, one module each. All implement `protocol.Source`."""
