"""Rewards: function, model, judge, sandbox, router, combine."""
