"""The search for the best placement: which roles share which devices, how many, in which of their choices."""

from flowrl.placement.search.candidate import Candidate, Draft, Found, Laid, Option
from flowrl.placement.search.in_parts import StepInParts
from flowrl.placement.search.search import search

__all__ = ["Candidate", "Draft", "Found", "Laid", "Option", "StepInParts", "search"]
