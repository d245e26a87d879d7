from tests.placement.told import diagnostics

__all__ = ["diagnostics"]
