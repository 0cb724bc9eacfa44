"""The import paths in MindCluster's guides; there is no code here."""
