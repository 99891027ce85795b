"""May it be published: the audit, the rescore, the gates, the manifest."""
