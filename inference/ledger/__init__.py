"""The ledger of a revision: what is done, who may write, and how it ended."""
