"""Graph + pools → Program."""
