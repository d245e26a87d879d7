"""Pure tensor functions: estimators, losses, KL forms, aggregation, corrections. No state, no processes, no trainer."""
