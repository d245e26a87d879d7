"""How problems are told: spans, codes, diagnostics, frames. Knows nothing of flows, graphs or plans."""
