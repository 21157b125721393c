"""Tests of formal/tools: the runner, the export, the audit, the documents, `make proofs`."""
