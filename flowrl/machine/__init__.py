"""Clusters, device and model catalogues, backend traits. No torch, no graph."""
