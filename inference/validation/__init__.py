"""Decides whether a revision may be published: the audit, the rescore, the gates, the manifest."""
