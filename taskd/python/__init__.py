"""The import paths of MindCluster's guides; there is no code here."""
