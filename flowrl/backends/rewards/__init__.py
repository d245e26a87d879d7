"""Rewards: function, model."""
